"""The pictures of lesson 01: grid of blocks, a warp's addresses, the convolution window."""

from importlib import import_module
from pathlib import Path

from matplotlib.patches import FancyArrowPatch

from common.catalog import catalog
from common.report import canvas
from common.report.canvas import BLUE, GRID, INK, MUTED, ORANGE, SKY, VERMILION
from common.report.cells import box, frame, label, titled
from common.trace import trace

traced = import_module("lessons.01_naive.figures.traced")
gemm_naive = import_module("lessons.01_naive.gemm_naive")
WARP = 32
SECTOR_FLOATS = 8  # 32 bytes


def draw(folder: Path) -> list[Path]:
    """Write every picture into ``folder``; returns the PNG files."""
    return canvas.save_all(folder, grid, coalescing, window, requests)


def grid():
    """C cut into blocks, one block cut into threads, one thread and its element."""
    width, height = gemm_naive.THREADS_X, gemm_naive.THREADS_Y
    blocks_x, blocks_y = 3, 3
    block, thread = (1, 1), (5, 2)
    m, n = block[1] * height + thread[1], block[0] * width + thread[0]
    figure, axes = canvas.new_figure(9.6, 4.0)
    for bx in range(blocks_x):
        for by in range(blocks_y):
            chosen = (bx, by) == block
            colour = SKY if chosen else "none"
            box(axes, bx * width, by * height, width, height, face=colour, alpha=0.35, line=1.6)
    for tx in range(width):
        for ty in range(height):
            warp = ty == thread[1]
            box(axes, block[0] * width + tx, block[1] * height + ty, 1, 1, face=BLUE if warp else "none", line=0.3)
    box(axes, n, m, 1, 1, face=VERMILION, line=0.3)
    for bx in range(blocks_x):
        for by in range(blocks_y):
            label(axes, bx * width + width / 2, by * height + 0.9, f"block ({bx}, {by})", size=9)
    axes.annotate(
        f"thread ({thread[0]}, {thread[1]}) of block ({block[0]}, {block[1]})\n"
        f"n = {block[0]} × {width} + {thread[0]} = {n}\nm = {block[1]} × {height} + {thread[1]} = {m}",
        (n + 0.5, m + 1), xytext=(4, 21.5), color=VERMILION, va="center", fontweight="bold",
        bbox={"facecolor": canvas.PAPER, "edgecolor": VERMILION, "pad": 3},
        arrowprops={"arrowstyle": "->", "color": VERMILION},
    )  # fmt: skip
    axes.annotate(
        "one warp: 32 threads\nwith the same y", (block[0] * width + 25, m + 0.5), xytext=(74, 21.5), color=BLUE,
        va="center", fontweight="bold", bbox={"facecolor": canvas.PAPER, "edgecolor": BLUE, "pad": 3},
        arrowprops={"arrowstyle": "->", "color": BLUE},
    )  # fmt: skip
    _canvas(axes, blocks_x * width, blocks_y * height, "column n, the x axis", "row m, the y axis")
    figure.suptitle(f"C[{blocks_y * height}, {blocks_x * width}]: one thread per element", fontweight="bold")
    return figure


def coalescing():
    """The sectors one warp touches in one request: neighbours in memory, and a row apart."""
    figure, (left, right) = canvas.new_figure(9.6, 4.6, columns=2)
    rows = 16
    for axis, title, touched in (
        (left, "x is the column: 32 neighbours", [(i // SECTOR_FLOATS, i % SECTOR_FLOATS) for i in range(WARP)]),
        (right, "x is the row: a whole row apart", [(i, 0) for i in range(WARP)]),
    ):
        used = {sector for sector, _ in touched}
        for sector in range(rows):
            for word in range(SECTOR_FLOATS):
                wanted = (sector, word) in touched
                face = BLUE if wanted else (ORANGE if sector in used else "none")
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
    height, width, r_extent, s_extent = 6, 7, 3, 3
    p, q = 1, 2
    figure, axes = canvas.new_figure(9.6, 3.6)
    for h in range(height):
        for w in range(width):
            inside = p <= h < p + r_extent and q <= w < q + s_extent
            box(axes, w, h, 1, 1, face=SKY if inside else "none", line=0.8)
    for r in range(r_extent):
        for s in range(s_extent):
            box(axes, 10 + s, 1.5 + r, 1, 1, face=ORANGE, alpha=0.6, line=0.8)
            label(axes, 10.5 + s, 2 + r, f"{r},{s}", size=8)
    for i in range(height - r_extent + 1):
        for j in range(width - s_extent + 1):
            box(axes, 16 + j, 1 + i, 1, 1, face=VERMILION if (i, j) == (p, q) else "none", line=0.8)
    label(axes, width / 2, -0.5, "x[n, c, h, w]", weight="bold")
    label(axes, 11.5, -0.5, "filt[k, c, r, s]", weight="bold")
    label(axes, 18.5, -0.5, "y[n, k, p, q]", weight="bold")
    label(axes, width / 2, height + 0.6, f"rows h = p + r, columns w = q + s\np = {p}, q = {q}", size=9.5)
    label(axes, 8.5, 3, "×", size=18)
    label(axes, 11.5, height + 0.6, "the same taps\nfor every output", size=9.5)
    axes.add_patch(FancyArrowPatch((13.5, 3), (15.6, 3), arrowstyle="-|>", mutation_scale=16, color=INK))
    label(axes, 14.5, 2.4, "sum of 9\nproducts", size=9)
    label(
        axes, 18.5, height + 0.6, f"P = H - R + 1 = {height - r_extent + 1}\nQ = W - S + 1 = {width - s_extent + 1}",
        size=9.5,
    )  # fmt: skip
    frame(axes, (-0.5, 21.5), (height + 1.3, -1))
    return figure


def requests():
    """The first global requests of the lesson's steps, one step a row: a warp's lanes and the sectors they touch."""
    names = ("gemm_naive", "gemm_naive_uncoalesced")
    steps = [catalog.find(name) for name in names]
    tasks = [trace.task(step, trace.SHAPES[step.ladder][0]) for step in steps]
    figure, axes = canvas.new_figure(9.6, 2.0 * len(names), rows=len(names), columns=3)
    for row, name, found in zip(axes, names, trace.results(tasks), strict=True):
        chosen = [a for a in found.main.accesses if a.space == "global"]
        for axis, access in zip(row, chosen, strict=False):
            axis.axis("off")
            traced.request(axis, access)
        row[0].text(
            -0.02, 0.45, name, transform=row[0].transAxes, rotation=90, ha="right", va="center", fontweight="bold",
            fontsize=8.5,
        )  # fmt: skip
    note = "Above: the sectors fetched, 8 floats each. Blue: wanted by a lane. Orange: fetched for nothing."
    canvas.footnote(figure, note, 0.05, size=9)
    return figure


def _canvas(axes, width, height, xlabel, ylabel):
    axes.set_xlim(-0.5, width + 0.5)
    axes.set_ylim(height + 0.5, -1.6)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.set_xticks(range(0, width + 1, 32))
    axes.set_yticks(range(0, height + 1, 8))
    for spine in axes.spines.values():
        spine.set_color(GRID)
