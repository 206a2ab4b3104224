"""The pictures of lesson 03: work per thread, wide loads, a window reused."""

from importlib import import_module

from common.report import canvas
from common.report.canvas import BLUE, GREEN, GRID, MUTED, ORANGE, SKY, VERMILION, YELLOW
from common.report.cells import box, frame, grid, label, titled

gemm_coarsened = import_module("lessons.03_coarsening.gemm_coarsened")
conv2d_coarsened = import_module("lessons.03_coarsening.conv2d_coarsened")
VECTOR = import_module("lessons.toolkit.memory").VECTOR


def work():
    """What one thread computes and reads at one k: one element of C, then WPT of them."""
    tile, wpt = gemm_coarsened.TILE, gemm_coarsened.WPT
    figure, axes_pair = canvas.new_figure(9.6, 4.7, columns=2)
    k, ty, tx = 9, 1, 21
    for axes, count, title in (
        (axes_pair[0], 1, "gemm_shared_tile: 1 output per thread"),
        (axes_pair[1], wpt, f"gemm_coarsened: {wpt} outputs per thread"),
    ):
        rows = [w * (tile // count) + ty for w in range(count)]
        right, low = tile + 5, tile + 5
        for x, y in ((0, low), (right, 0), (right, low)):
            box(axes, x, y, tile, tile, line=1.2)
        for row in rows:
            box(axes, k - 0.5, low + row - 0.5, 2, 2, face=BLUE, line=0)
            box(axes, right + tx - 0.5, low + row - 0.5, 2, 2, face=VERMILION, line=0)
            axes.plot([k + 1, right + tx], [low + row + 0.5] * 2, color=SKY, linewidth=0.7)
        box(axes, right + tx - 0.5, k - 0.5, 2, 2, face=ORANGE, line=0)
        axes.plot([right + tx + 0.5] * 2, [k + 1, low + rows[-1]], color=ORANGE, linewidth=0.8)
        label(axes, tile / 2, low + tile + 3, "a_tile", weight="bold")
        label(axes, right + tile / 2, -2.5, "b_tile", weight="bold")
        label(axes, right + tile / 2, low + tile + 3, "block of C", weight="bold")
        outputs = "the output" if count == 1 else "the outputs"
        text = f"at one k:\nblue and orange: read\nred: {outputs}\nof one thread"
        axes.text(0, 6, text, fontsize=10.5, linespacing=1.45, va="center")
        titled(axes, title)
        frame(axes, (-1, right + tile + 1), (low + tile + 5, -5))
    return figure


def wide():
    """Which thread of a warp reads which float of a row: four 32-bit loads and, below, one 128-bit load."""
    threads, words = 8, 8 * VECTOR
    figure, axes = canvas.new_figure(9.6, 2.9)
    for i in range(VECTOR + 1):
        top, load = (i, i + 1) if i < VECTOR else (VECTOR + 2, 1)
        label(axes, -0.4, top + 0.5, f"load {load}", size=9.5, ha="right")
        for word in range(words):
            thread = word % threads if i < VECTOR else word // VECTOR
            read = i in (word // threads, VECTOR)
            box(axes, word, top, 1, 1, face=(SKY, YELLOW)[thread % 2] if read else "none", alpha=0.8, line=0.4)
            label(axes, word + 0.5, top + 0.5, str(thread) if read else "", size=8.5)
    label(axes, 0, -0.7, f"32-bit: {VECTOR} instructions, one float per thread each", weight="bold", ha="left")
    text = "128-bit: one instruction, four neighbouring floats per thread"
    label(axes, 0, VECTOR + 1.3, text, weight="bold", ha="left")
    note = f"{words} floats of one row; the numbers are threads of the warp, of which {threads} are shown"
    label(axes, words / 2, VECTOR + 3.8, note, size=9.5, color=MUTED)
    frame(axes, (-3, words + 0.3), (VECTOR + 4.3, -1.3))
    return figure


def reuse():
    """One column of a thread's patch in registers, and which outputs each of its pixels serves."""
    rows, filters, taps = conv2d_coarsened.ROWS, conv2d_coarsened.FILTERS, 5
    column = rows + taps - 1
    figure, axes = canvas.new_figure(9.6, 4.2)
    grid(axes, 0, 0, column, 1, lambda *_: GRID, lambda i, _: str(i), size=10, line=1.2)
    for j, colour in zip(range(rows), (BLUE, ORANGE, GREEN, VERMILION, SKY, YELLOW), strict=False):
        grid(axes, 2 + 1.2 * j, j, taps, 1, lambda *_, it=colour: it, lambda r, _: f"r={r}", size=8.5, alpha=0.55)
    uses = [sum(0 <= i - r < rows for r in range(taps)) for i in range(column)]
    axes.barh([i + 0.5 for i in range(column)], [0.9 * count for count in uses], left=8.3, height=0.7, color=BLUE)
    for i, count in enumerate(uses):
        label(axes, 8.45 + count * 0.9, i + 0.5, str(count), size=10, ha="left")
    label(axes, 0.5, -0.6, "column[i]", weight="bold", size=10)
    label(axes, 2 + 0.6 * rows - 0.15, -0.6, f"windows of the thread's {rows} pixels", weight="bold", size=10)
    label(axes, 8.3, -0.6, "multiply-adds per filter", size=10, weight="bold", ha="left")
    text = f"A pixel is loaded once, and serves as many multiply-adds of each of {filters} filters as its bar says."
    label(axes, 6.2, column + 0.8, text, size=10.5)
    frame(axes, (-0.6, 13), (column + 1.3, -1.1), equal=False)
    return figure


PICTURES = work, wide, reuse  # each under its function's name
