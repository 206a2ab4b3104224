"""The pictures of lesson 01: grid of blocks, a warp's addresses, the convolution window."""

from importlib import import_module

from common.report import canvas, cells
from common.report.canvas import BLUE, GRID, MUTED, ORANGE, SKY, VERMILION
from common.report.cells import arrow, box, frame, label, titled

gemm_naive = import_module("lessons.01_naive.gemm_naive")
WARP = 32
SECTOR_FLOATS = 8  # 32 bytes


def grid():
    """C cut into blocks, one block cut into threads, one thread and its element."""
    width, height = gemm_naive.THREADS_X, gemm_naive.THREADS_Y
    side = 3  # blocks along either axis
    (bx, by), (tx, ty) = (1, 1), (5, 2)
    m, n = by * height + ty, bx * width + tx
    figure, axes = canvas.new_figure(9.6, 4.0)
    for x in range(side):
        for y in range(side):
            colour = SKY if (x, y) == (bx, by) else "none"
            box(axes, x * width, y * height, width, height, face=colour, alpha=0.35, line=1.6)
            label(axes, x * width + width / 2, y * height + 0.9, f"block ({x}, {y})", size=9)
    cells.grid(axes, bx * width, by * height, height, width, lambda i, _: BLUE if i == ty else "none", line=0.3)
    box(axes, n, m, 1, 1, face=VERMILION, line=0.3)
    thread = (
        f"thread ({tx}, {ty}) of block ({bx}, {by})\n"
        f"n = {bx} × {width} + {tx} = {n}\nm = {by} × {height} + {ty} = {m}"
    )
    for text, place, at, colour in (
        (thread, (n + 0.5, m + 1), 4, VERMILION),
        ("one warp: 32 threads\nwith the same y", (bx * width + 25, m + 0.5), 74, BLUE),
    ):
        axes.annotate(
            text, place, xytext=(at, 21.5), color=colour, va="center", fontweight="bold",
            bbox={"facecolor": canvas.PAPER, "edgecolor": colour, "pad": 3},
            arrowprops={"arrowstyle": "->", "color": colour},
        )  # fmt: skip
    axes.set(
        xlim=(-0.5, side * width + 0.5), ylim=(side * height + 0.5, -1.6),
        xlabel="column n, the x axis", ylabel="row m, the y axis",
        xticks=range(0, side * width + 1, 32), yticks=range(0, side * height + 1, 8),
    )  # fmt: skip
    axes.spines[:].set_color(GRID)
    figure.suptitle(f"C[{side * height}, {side * width}]: one thread per element", fontweight="bold")
    return figure


def coalescing():
    """The sectors one warp touches in one request: neighbours in memory, and a row apart."""
    figure, both = canvas.new_figure(9.6, 4.6, columns=2)
    rows = 16
    for axis, title, touched in (
        (both[0], "x is the column: 32 neighbours", [divmod(i, SECTOR_FLOATS) for i in range(WARP)]),
        (both[1], "x is the row: a whole row apart", [(i, 0) for i in range(WARP)]),
    ):
        used = {sector for sector, _ in touched}
        for sector in range(rows):
            for word in range(SECTOR_FLOATS):
                face = BLUE if (sector, word) in touched else (ORANGE if sector in used else "none")
                box(axis, word, sector, 1, 0.8, face=face, line=0.4)
        titled(axis, title)
        share = 100 * len(touched) / (len(used) * SECTOR_FLOATS)
        text = f"{len(used)} sectors fetched, {share:.1f}% of their bytes used"
        label(axis, SECTOR_FLOATS / 2, rows + (0.9 if len(used) <= rows else 1.9), text, size=10)
        if len(used) > rows:
            label(axis, SECTOR_FLOATS / 2, rows + 0.5, f"... and {len(used) - rows} more", size=9, color=MUTED)
        frame(axis, (-0.2, SECTOR_FLOATS + 0.2), (rows + 2.4, -0.6), equal=False)
    note = "A line is a sector of 8 floats. Blue: wanted. Orange: fetched for nothing. White: not fetched."
    canvas.footnote(figure, note, 0.05)
    return figure


def window():
    """Input, filter and output of a 3x3 cross-correlation, with one output and the pixels it sums."""
    height, width, taps, p, q = 6, 7, 3, 1, 2
    rows, columns = height - taps + 1, width - taps + 1
    figure, axes = canvas.new_figure(9.6, 3.6)
    cells.grid(axes, 0, 0, height, width, lambda h, w: SKY if p <= h < p + taps and q <= w < q + taps else "none")
    cells.grid(axes, 10, 1.5, taps, taps, lambda r, s: ORANGE, lambda r, s: f"{r},{s}", size=8, alpha=0.6)
    cells.grid(axes, 16, 1, rows, columns, lambda i, j: VERMILION if (i, j) == (p, q) else "none")
    for x, above, below in (
        (width / 2, "x[n, c, h, w]", f"rows h = p + r, columns w = q + s\np = {p}, q = {q}"),
        (11.5, "filt[k, c, r, s]", "the same taps\nfor every output"),
        (18.5, "y[n, k, p, q]", f"P = H - R + 1 = {rows}\nQ = W - S + 1 = {columns}"),
    ):
        label(axes, x, -0.5, above, weight="bold")
        label(axes, x, height + 0.6, below, size=9.5)
    label(axes, 8.5, 3, "×", size=18)
    arrow(axes, (13.5, 3), (15.6, 3))
    label(axes, 14.5, 2.4, "sum of 9\nproducts", size=9)
    frame(axes, (-0.5, 21.5), (height + 1.3, -1))
    return figure


PICTURES = grid, coalescing, window  # each under its function's name
