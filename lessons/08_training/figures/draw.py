"""One set of products summed three ways, and the classes of a stride of 2."""

import numpy as np

from common.report import canvas
from common.report.canvas import GREEN, INK, MUTED, ORANGE, SKY, YELLOW
from common.report.cells import box, frame, grid, label

# The example of section 2: one axis, stride 1, no padding
WIDTH, TAPS = 6, 3
OUTPUTS = WIDTH - TAPS + 1
EXTENT = 8  # of dx, at a stride of 2 and a padding of 1
CLASSES = {(1, 1): YELLOW, (1, 0): ORANGE, (0, 1): SKY, (0, 0): GREEN}  # by what (h + pad, w + pad) leaves
COLOURS = (SKY, ORANGE, GREEN)


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


PICTURES = sums, classes  # each under its function's name
