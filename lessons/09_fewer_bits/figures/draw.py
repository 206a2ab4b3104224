"""The picture of lesson 09: where the weights belong that are kept."""

import numpy as np

from common.catalog import inputs, reference
from common.report import canvas
from common.report.canvas import INK, MUTED, ORANGE, SKY, VERMILION
from common.report.cells import box, frame, label, outline, titled


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


PICTURES = (places,)  # each under its function's name
