"""The pictures of lesson 09: who holds what of a fragment of int8, how far a sum of ones comes in 14 bits, and where
the weights belong that are kept."""

from pathlib import Path

import numpy as np

from common.catalog import inputs, reference
from common.report import canvas
from common.report.canvas import BLUE, GRID, INK, MUTED, ORANGE, SKY, VERMILION, YELLOW
from common.report.cells import box, frame, label, outline, titled
from common.trace import helpers
from common.trace.hopper import layouts

SHADES = (SKY, ORANGE, YELLOW, GRID)  # of the four registers
LANE = 6  # the one that is drawn in red
TERMS = 65536


def draw(folder: Path) -> list[Path]:
    """Write every picture into ``folder``; returns the PNG files."""
    return canvas.save_all(folder, fragment, ones, places)


def fragment():
    """A, 16 x 32, of mma.m16n8k32: the lane that holds each group of four values, coloured by register."""
    figure, axes = canvas.new_figure(9.6, 4.4)
    rows, columns = helpers.K32.a
    for lane in range(32):
        for register in range(4):
            row, column = int(rows[lane, 4 * register]), int(columns[lane, 4 * register])
            mine = lane == LANE
            box(axes, column, row, 4, 1, face=VERMILION if mine else SHADES[register], alpha=0.9 if mine else 0.5)
            label(axes, column + 2, row + 0.5, str(lane), size=8, color="white" if mine else INK)
    for row in (0, 8):
        for column in (0, 16):
            outline(axes, column, row, 16, 8, INK, 1.4)
    for column in (0, 4, 16, 28):
        label(axes, column + 2, -0.5, f"k = {column} to {column + 3}", size=8, color=MUTED)
    for row in (0, 8):
        label(axes, -1.2, row + 0.5, f"row {row}", size=8, color=MUTED)
    titled(axes, "lanes that hold A: four registers (colours) of four values")
    frame(axes, (-2.6, 32.3), (16.3, -1.1), equal=False)
    return figure


def sums(promoted):
    """Of ones, after each instruction: in the unit alone, or moved to float32 after every fourth."""
    left, right = np.ones((1, 32)), np.ones((32, 1))
    part, total, found = np.zeros((1, 1)), 0.0, []
    for step in range(1, TERMS // 32 + 1):
        part = layouts.cut_sums(part, left, right)
        found.append(total + part[0, 0])
        if promoted and step % 4 == 0:
            total, part = total + part[0, 0], np.zeros((1, 1))
    return found


def ones():
    """Sums of K ones, as the unit keeps them, and promoted every 128 of k."""
    figure, axes = canvas.new_figure(9.6, 3.4)
    terms = np.arange(32, TERMS + 1, 32)
    for kept, colour, said in (
        (True, BLUE, "promoted every 128 of k"),
        (False, VERMILION, "kept in the matrix unit"),
    ):
        axes.plot(terms, sums(kept), color=colour, linewidth=2, label=said)
    axes.set_xlabel("K: products of 1 and 1")
    axes.set_ylabel("the sum")
    ticks = [0, 16384, 32768, 49152, 65536]
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(ticks, [f"{tick:,}" for tick in ticks])
    canvas.gridded(axes)
    axes.legend(frameon=False)
    return figure


def places():
    """Weights of one instruction, 16 x 32, and the bits of which lane say where those belong that are kept."""
    figure, axes = canvas.new_figure(9.6, 4.6)
    weights = np.random.default_rng(1).integers(-9, 10, (16, 32)).astype(np.float16)
    kept = inputs.pruned(weights.T, reference.PRUNED).T
    for row in range(16):
        for four in range(8):
            mine = (row, four) == (2, 2)
            columns = np.flatnonzero(kept[row, 4 * four : 4 * four + 4])
            for column in range(4):
                there = column in columns
                shade = (VERMILION if mine else (SKY, ORANGE)[four // 4]) if there else "white"
                box(axes, 4 * four + column, row, 1, 1, face=shade, alpha=0.9 if mine else 0.5)
                value = f"{int(weights[row, 4 * four + column])}"
                colour = MUTED if not there else "white" if mine else INK
                label(axes, 4 * four + column + 0.5, row + 0.5, value, size=7, color=colour)
            outline(axes, 4 * four, row, 4, 1, INK, 0.6)
            if mine:
                low, high = int(columns[0]), int(columns[1])
                text = f"lane 8, bits 8 to 11: {high:02b} {low:02b}, columns {low} and {high} of the four"
                label(axes, 16, 17.0, text, size=9, color=VERMILION)
    for row in range(16):
        half = "bits 0-15" if row < 8 else "bits 16-31"
        label(axes, -3.4, row + 0.5, f"lane {4 * (row % 8)}, {half}", size=7, color=MUTED)
        label(axes, 35.6, row + 0.5, f"lane {4 * (row % 8) + 1}, {half}", size=7, color=MUTED)
    titled(axes, "weights of 16 columns of B (rows) along k: what is kept, and whose bits say where it is")
    frame(axes, (-7.2, 39.3), (17.8, -0.6), equal=False)
    return figure
