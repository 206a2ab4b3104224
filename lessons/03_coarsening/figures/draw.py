"""The pictures of lesson 03: work per thread, the instruction mix, wide loads and alignment, a window reused."""

from importlib import import_module
from pathlib import Path

from matplotlib.patches import Rectangle

from common.records import records
from common.report import canvas
from common.report.canvas import BLUE, GREEN, GRID, INK, MUTED, ORANGE, SKY, VERMILION, YELLOW
from common.report.cells import box, frame, label, titled

traced = import_module("lessons.01_naive.figures.traced")
gemm_coarsened = import_module("lessons.03_coarsening.gemm_coarsened")
gemm_wide_loads = import_module("lessons.03_coarsening.gemm_wide_loads")
conv2d_coarsened = import_module("lessons.03_coarsening.conv2d_coarsened")
VECTOR = import_module("lessons.toolkit.memory").VECTOR
LESSON = Path(__file__).parents[1].name


def draw(folder: Path) -> list[Path]:
    """Write every picture into ``folder``; returns the PNG files."""
    return canvas.save_all(
        folder, work, wide, alignment, reuse, mix=mix(records.load_code()),
        loads_per_fma=traced.loads_per_fma(through=LESSON),
    )  # fmt: skip


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
        axes.text(
            0, 6, f"at one k:\nblue and orange: read\nred: {outputs}\nof one thread", fontsize=10.5, linespacing=1.45,
            va="center",
        )  # fmt: skip
        titled(axes, title)
        frame(axes, (-1, right + tile + 1), (low + tile + 5, -5))
    return figure


PROMISED = {
    "gemm_shared_tile": 2.0,
    "gemm_coarsened": (gemm_coarsened.WPT + 1) / gemm_coarsened.WPT,
    "gemm_wide_loads": (1 + gemm_wide_loads.WPT / VECTOR / VECTOR) / gemm_wide_loads.WPT,
}


def mix(code):
    """Instructions of the multiply loop for each multiply-add: promised, and compiled if that is recorded."""
    figure, axes = canvas.new_figure(9.6, 3.9)
    places, names = [], []
    for i, (name, loads) in enumerate(PROMISED.items()):
        loop = _loop(code, name)
        rows = [("promised", 1.0, loads, 0.0)]
        if loop:
            fma, shared = loop.get("FFMA", 0), loop.get("LDS", 0)
            rows.append(("compiled", 1.0, shared / fma, (sum(loop.values()) - fma - shared) / fma))
        for j, (what, *parts) in enumerate(rows):
            y, start = 2.5 * i + j, 0.0
            for value, colour in zip(parts, (BLUE, ORANGE, GRID), strict=True):
                axes.barh(y, value, left=start, height=0.8, color=colour, edgecolor="white")
                if value >= 0.12:
                    shown = f"{value + 1e-9:.2f}".rstrip("0").rstrip(".")  # halves up, as in the pages
                    label(axes, start + value / 2, y, shown, size=9, color="white" if colour == BLUE else INK)
                start += value
            places.append(y)
            names.append(f"{name}, {what}")
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.set_xlabel("instructions per multiply-add")
    axes.tick_params(axis="y", length=0)
    handles = [Rectangle((0, 0), 1, 1, color=colour) for colour in (BLUE, ORANGE, GRID)]
    figure.legend(
        handles, ("multiply-add", "load from shared memory", "anything else: addresses, guards, staging, the loop"),
        loc="outside upper left", ncols=3, frameon=False, fontsize=10,
    )  # fmt: skip
    return figure


def _loop(code, name):
    """The multiply loop's instructions by name, wherever the record keeps the step; {} if it does not."""
    kernels = records.code_kernels(code, name)
    return kernels[-1].loop if kernels else {}


def wide():
    """Which thread of a warp reads which float of a row: four 32-bit loads and one 128-bit load."""
    threads, words = 8, 8 * VECTOR
    figure, (above, below) = canvas.new_figure(9.6, 4.3, rows=2, gridspec_kw={"height_ratios": [1.75, 1]})
    shades = (SKY, YELLOW)
    for i in range(VECTOR):
        for word in range(words):
            thread = word % threads
            taken = word // threads == i
            box(above, word, i * 1.15, 1, 0.9, face=shades[thread % 2] if taken else "none", alpha=0.8, line=0.4)
            if taken:
                label(above, word + 0.5, i * 1.15 + 0.45, str(thread), size=8.5)
        label(above, -0.4, i * 1.15 + 0.45, f"load {i + 1}", size=9.5, ha="right")
    titled(above, f"32-bit: {VECTOR} instructions, one float per thread each", loc="left")
    for word in range(words):
        thread = word // VECTOR
        box(below, word, 0, 1, 0.9, face=shades[thread % 2], alpha=0.8, line=0.4)
    for thread in range(threads):
        box(below, thread * VECTOR, 0, VECTOR, 0.9, line=1.6)
        label(below, (thread + 0.5) * VECTOR, 1.14, f"thread {thread}", size=9.5)
    label(below, -0.4, 0.45, "load 1", size=9.5, ha="right")
    titled(below, "128-bit: one instruction, four neighbouring floats per thread", loc="left")
    label(
        below, words / 2, 1.7, f"{words} floats of one row; {threads} threads of the warp are shown", size=9.5,
        color=MUTED,
    )  # fmt: skip
    for axes, low in ((above, VECTOR * 1.15), (below, 1.9)):
        frame(axes, (-3, words + 0.3), (low, -0.25), equal=False)
    return figure


def alignment():
    """Rows of a matrix in memory against 16-byte boundaries: a multiple of four columns, and not."""
    figure, axes_pair = canvas.new_figure(9.6, 3.3, columns=2)
    for axes, columns in zip(axes_pair, (8, 6), strict=True):
        rows = 3
        for word in range(rows * columns):
            row, column = divmod(word, columns)
            line, place = divmod(word, 8)
            vector = column // VECTOR
            whole = column - column % VECTOR + VECTOR <= columns
            start = row * columns + vector * VECTOR
            good = whole and start % VECTOR == 0
            box(axes, place, line, 1, 0.86, face=GREEN if good else ORANGE, alpha=0.6, line=0.4)
            label(axes, place + 0.5, line + 0.43, f"{row},{column}", size=9)
        for boundary in range(0, 9, VECTOR):
            axes.plot([boundary, boundary], [-0.12, -(-rows * columns // 8)], color=INK, linewidth=2)
        fits = "every row starts on a boundary" if columns % VECTOR == 0 else "row 1 starts in the middle of a vector"
        titled(axes, f"N = {columns}: {fits}")
        frame(axes, (-0.2, 8.2), (3.1, -0.3), equal=False)
    note = (
        "Elements row,column as they follow each other in memory; thick lines: 16-byte boundaries.\n"
        "Green: may be read as a 128-bit vector. Orange: one by one."
    )
    canvas.footnote(figure, note, 0.14, y=0.015)
    return figure


def reuse():
    """One column of a thread's patch in registers, and which outputs each of its pixels serves."""
    rows, filters, taps = conv2d_coarsened.ROWS, conv2d_coarsened.FILTERS, 5
    column = rows + taps - 1
    figure, axes = canvas.new_figure(9.6, 4.2)
    colours = (BLUE, ORANGE, GREEN, VERMILION, SKY, YELLOW)
    for i in range(column):
        box(axes, 0, i, 1, 1, face=GRID, line=1.2)
        label(axes, 0.5, i + 0.5, str(i), size=10)
        uses = sum(0 <= i - r < rows for r in range(taps))
        axes.barh(i + 0.5, uses * 0.9, left=8.3, height=0.7, color=BLUE)
        label(axes, 8.45 + uses * 0.9, i + 0.5, f"{uses}", size=10, ha="left")
    for j in range(rows):
        box(axes, 2 + 1.2 * j, j, 0.9, taps, face=colours[j % len(colours)], alpha=0.55, line=1.2)
        for r in range(taps):
            label(axes, 2.45 + 1.2 * j, j + r + 0.5, f"r={r}", size=8.5)
    label(axes, 0.5, -0.6, "column[i]", weight="bold", size=10)
    label(axes, 2 + 0.6 * rows - 0.15, -0.6, f"windows of the thread's {rows} pixels", weight="bold", size=10)
    label(axes, 8.3, -0.6, "multiply-adds per filter", size=10, weight="bold", ha="left")
    label(
        axes, 6.2, column + 0.8,
        f"A pixel is loaded once, and serves as many multiply-adds of each of {filters} filters as its bar is long.",
        size=10.5,
    )  # fmt: skip
    frame(axes, (-0.6, 13), (column + 1.3, -1.1), equal=False)
    return figure
