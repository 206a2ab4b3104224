"""One set of products summed three ways, the classes of a stride of 2, and tiles in equal shares."""

from importlib import import_module
from pathlib import Path

import numpy as np

from common.report import canvas
from common.report.canvas import GREEN, INK, MUTED, ORANGE, PURPLE, SKY, VERMILION, YELLOW
from common.report.cells import box, frame, grid, label

# The example of section 2: one axis, stride 1, no padding
WIDTH, TAPS = 6, 3
OUTPUTS = WIDTH - TAPS + 1
EXTENT = 8  # of dx, at a stride of 2 and a padding of 1
CLASSES = {(1, 1): YELLOW, (1, 0): ORANGE, (0, 1): SKY, (0, 0): GREEN}  # by what (h + pad, w + pad) leaves
STREAM_K = import_module("lessons.08_training.wgrad_stream_k")
TILE_STEPS, PLACES = (8, 8, 8, 6, 6, 4), 7  # iterations of six tiles, and places for blocks
COLOURS = (SKY, ORANGE, GREEN, PURPLE, YELLOW, VERMILION)


def draw(folder: Path) -> list[Path]:
    """Write every picture into ``folder``; returns the PNG files."""
    return canvas.save_all(folder, sums, classes, equal_shares)


def sums():
    """Every product of a convolution along one axis, in three copies: summed by rows, by columns, by diagonals."""
    figure, panels = canvas.new_figure(9.6, 2.9, columns=3)
    products = {(p, p + r): r for p, r in np.ndindex(OUTPUTS, TAPS)}
    chosen = (
        (lambda p, w: p == 1, "y[1]: along a row", "x[w] · filt[w − p]"),
        (lambda p, w: w == 3, "dx[3]: down a column", "dy[p] · filt[w − p]"),
        (lambda p, w: w - p == 1, "dfilt[1]: along a diagonal", "dy[p] · x[w]"),
    )
    for axes, (wanted, title, product) in zip(panels, chosen, strict=True):
        grid(axes, 0, 0, OUTPUTS, WIDTH, lambda _p, _w: "none", line=0.4)
        for (p, w), r in products.items():
            alpha, line, ink = (0.9, 1.6, INK) if wanted(p, w) else (0.22, 0.4, MUTED)
            box(axes, w, p, 1, 1, face=COLOURS[r], alpha=alpha, line=line)
            label(axes, w + 0.5, p + 0.53, f"r={r}", size=7.5, color=ink)
        for p in range(OUTPUTS):
            label(axes, -0.55, p + 0.5, f"p={p}", size=8, color=MUTED)
        for w in range(WIDTH):
            label(axes, w + 0.5, -0.4, f"w={w}", size=8, color=MUTED)
        label(axes, WIDTH / 2, -1.35, title, size=10.5, weight="bold")
        label(axes, WIDTH / 2, OUTPUTS + 0.6, f"sums {product}", size=9.5, color=MUTED)
        frame(axes, (-1.2, WIDTH + 0.3), (OUTPUTS + 1.1, -1.9))
    return figure


def classes():
    """dx at a stride of 2, coloured by class, and each class with the taps of the filter that it meets."""
    figure, (left, right) = canvas.new_figure(9.6, 3.1, columns=2, gridspec_kw={"width_ratios": [1, 2.4]})
    x = 0.0
    for (b_h, b_w), face in CLASSES.items():
        met = {(r, s) for r in range(b_h, TAPS, 2) for s in range(b_w, TAPS, 2)}
        for i, j in np.ndindex(EXTENT // 2, EXTENT // 2):
            row, column = 2 * i + (1 - b_h), 2 * j + (1 - b_w)
            box(left, column, row, 1, 1, face=face, alpha=0.55, line=0.4)
            label(left, column + 0.5, row + 0.53, str(len(met)), size=7.5)
        for r, s in np.ndindex(TAPS, TAPS):
            colour, line, ink = (face, 1.2, INK) if (r, s) in met else ("none", 0.4, MUTED)
            box(right, x + s, r, 1, 1, face=colour, alpha=0.6, line=line)
            label(right, x + s + 0.5, r + 0.53, f"{r},{s}", size=7.5, color=ink)
        label(right, x + TAPS / 2, -0.7, f"rests {b_h}, {b_w}", size=9.5, weight="bold")
        text = f"{len(met)} tap{'s' * (len(met) > 1)}:\nGEMM_K = {len(met)} K"
        label(right, x + TAPS / 2, TAPS + 0.65, text, size=9, color=MUTED, va="top")
        x += TAPS + 1.1
    label(left, EXTENT / 2, -0.7, "dx: taps that each element meets", size=9.5, weight="bold")
    frame(left, (-0.3, EXTENT + 0.3), (EXTENT + 0.6, -1.3))
    label(right, (x - 1.1) / 2, TAPS + 3.0, "four dense problems, each a quarter of dx", size=9.5, color=MUTED)
    frame(right, (-0.4, x - 0.7), (TAPS + 3.4, -1.3))
    return figure


def equal_shares():
    """Six tiles on seven places: a block for each tile, and blocks that cut the row of all iterations evenly."""
    work, first_segments = STREAM_K.cut([(steps, 0, 0, 0) for steps in TILE_STEPS], PLACES)
    whole = [[(tile, f"tile {tile}", steps)] for tile, steps in enumerate(TILE_STEPS)] + [[]]
    tile_of = np.searchsorted(first_segments, np.arange(first_segments[-1]), "right") - 1
    equal = [[(tile_of[row[0]], str(row[0]), row[-1]) for row in block if row[-1]] for block in work]
    longest = max(TILE_STEPS)
    figure, panels = canvas.new_figure(9.6, 3.3, columns=2)
    for axes, blocks, title in zip(
        panels, (whole, equal), ("a block for each tile", "a block for each place"), strict=True
    ):
        end = max(sum(segment[-1] for segment in segments) for segments in blocks)
        for place, segments in enumerate(blocks):
            x = 0
            for tile, name, steps in segments:
                box(axes, x, place, steps, 0.8, face=COLOURS[tile], alpha=0.55, line=1.2)
                for step in range(1, steps):
                    axes.plot((x + step, x + step), (place + 0.65, place + 0.8), color=MUTED, linewidth=0.6)
                label(axes, x + steps / 2, place + 0.36, name, size=8.5)
                x += steps
            label(axes, -0.75, place + 0.4, f"place {place}", size=8.5, color=MUTED)
            if x < end:
                label(axes, (x + end) / 2, place + 0.42, "idle", size=8.5, color=MUTED)
        axes.plot((end, end), (-0.2, PLACES), color=INK, linewidth=1.2, linestyle=":")
        label(axes, longest / 2, -0.75, f"{title}: done after {end} iterations", size=10, weight="bold")
        frame(axes, (-1.5, longest + 0.4), (PLACES + 0.5, -1.2))
        axes.set_aspect("auto")
    label(panels[1], longest / 2, PLACES + 0.25, "numbers: segments, colours: their tiles", size=8.5, color=MUTED)
    return figure
