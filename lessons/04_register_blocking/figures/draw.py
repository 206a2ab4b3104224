"""The pictures of lesson 04: register tile, banks, double buffering, warp tiles."""

from importlib import import_module

import numpy as np

from common.report import canvas
from common.report.canvas import BLUE, GREEN, GRID, INK, MUTED, ORANGE, PURPLE, SKY, VERMILION, YELLOW
from common.report.cells import box, frame, grid, label, span, titled
from common.trace import cost
from common.trace.cost import BANKS, WARP

LESSON = "lessons.04_register_blocking."
gemm_rectangular_tiles = import_module(LESSON + "gemm_rectangular_tiles")
gemm_register_blocked = import_module(LESSON + "gemm_register_blocked")
gemm_warp_tiles = import_module(LESSON + "gemm_warp_tiles")
VECTOR = import_module("lessons.toolkit.memory").VECTOR


def register_tile():
    """The pieces of a block that one thread owns, and the outer product it adds to them at each k."""
    step = gemm_register_blocked
    threads_x, threads_y = step.BLOCK_N // step.THREAD_N, step.BLOCK_M // step.THREAD_M
    tx, ty = 5, 2
    rows = [i // VECTOR * VECTOR * threads_y + ty * VECTOR + i % VECTOR for i in range(step.THREAD_M)]
    columns = [j // VECTOR * VECTOR * threads_x + tx * VECTOR + j % VECTOR for j in range(step.THREAD_N)]
    figure, (left, right) = canvas.new_figure(9.6, 5.0, columns=2)
    box(left, 0, 0, step.BLOCK_N, step.BLOCK_M, line=1.4)
    left.vlines(range(0, step.BLOCK_N, VECTOR), 0, step.BLOCK_M, color=GRID, linewidth=0.5)
    left.hlines(range(0, step.BLOCK_M, VECTOR), 0, step.BLOCK_N, color=GRID, linewidth=0.5)
    for m in rows[::VECTOR]:
        box(left, -9, m, 5, VECTOR, face=BLUE, line=0)
        for n in columns[::VECTOR]:
            box(left, n, m, VECTOR, VECTOR, face=GREEN, line=0)
    for n in columns[::VECTOR]:
        box(left, n, -9, VECTOR, 5, face=ORANGE, line=0)
    label(left, step.BLOCK_N / 2, -14, "n within the block", size=9.5, va="baseline")
    left.text(-14, step.BLOCK_M / 2, "m within the block", va="center", rotation=90, fontsize=9.5)
    label(left, step.BLOCK_N / 2, step.BLOCK_M + 6, f"a cell: {VECTOR} × {VECTOR} outputs", size=9.5, va="baseline")
    titled(left, f"what thread x = {tx}, y = {ty} owns of {step.BLOCK_M} × {step.BLOCK_N}")
    frame(left, (-19, step.BLOCK_N + 1), (step.BLOCK_M + 8, -19))
    height, width = step.THREAD_M, step.THREAD_N
    grid(right, -1.6, 0, height, 1, lambda *_: BLUE, lambda i, _: str(rows[i]), size=8.5, alpha=0.6)
    grid(right, 0, 0, height, width, lambda *_: GREEN, alpha=0.5)
    grid(right, 0, -1.6, 1, width, lambda *_: ORANGE, lambda _, j: str(columns[j]), size=8.5, alpha=0.7)
    label(right, width / 2, -2.2, "b_frag: columns n", size=10)
    right.text(-2.1, height / 2, "a_frag: rows m", rotation=90, va="center", ha="center", fontsize=10)
    label(right, width / 2, height / 2, "acc[i, j] += a_frag[i] * b_frag[j]", size=10, weight="bold", card=True)
    total, products = height + width, height * width
    text = f"at each k: {total} values read, {products} multiply-adds: {total / products:g}"
    label(right, width / 2 - 0.8, height + 0.8, text, size=10)
    titled(right, "in its registers")
    frame(right, (-2.8, width + 0.3), (height + 1.4, -2.7))
    return figure


def wavefronts(stride, words):
    """Wavefronts that it takes to give each lane ``words`` floats from its own row, rows ``stride`` apart."""
    return cost.wavefronts(np.arange(WARP)[None] * stride, np.ones((1, WARP), bool), words).moved


def banks():
    """Which bank each lane of a warp meets when it reads its own row of b_tile, for four paddings."""
    pads = (0, 1, 2, 4)
    figure, axes_row = canvas.new_figure(9.6, 3.9, columns=len(pads))
    for axes, pad in zip(axes_row, pads, strict=True):
        stride = gemm_rectangular_tiles.BLOCK_K + pad
        one = wavefronts(stride, 1)
        box(axes, 0, 0, BANKS, WARP, line=0.8)
        axes.vlines(range(8, BANKS, 8), 0, WARP, color=GRID, linewidth=0.6)
        axes.hlines(range(8, WARP, 8), 0, BANKS, color=GRID, linewidth=0.6)
        shade = GREEN if one == 1 else (ORANGE if one < 8 else VERMILION)
        for lane in range(WARP):
            box(axes, lane * stride % BANKS, lane, 1, 1, face=shade, line=0)
        words = next(words for words in (4, 2, 1) if stride % words == 0)  # of the widest read that is aligned
        four = wavefronts(stride, words) * (VECTOR // words)
        titled(axes, f"PAD = {pad}")
        label(axes, BANKS / 2, WARP + 5.6, f"one float per lane:\n{one} wavefront{'s' if one > 1 else ''}", size=9.5)
        text = f"four, {32 * words} bits at a time:\n{four} wavefronts"
        label(axes, BANKS / 2, WARP + 12.2, text, size=9.5, color=MUTED)
        label(axes, BANKS / 2, -0.8, "bank 0 … 31", size=8.5, color=MUTED, va="bottom")
        frame(axes, (-2.5, BANKS + 0.5), (WARP + 15, -3))
    axes_row[0].text(-1.2, WARP / 2, "lane 0 … 31", rotation=90, fontsize=8.5, va="center", ha="center", color=MUTED)
    return figure


def overlap():
    """One block in time: stage and multiply in turns, and the next loads on their way under this multiplication."""
    figure, (above, below) = canvas.new_figure(9.6, 4.7, rows=2, gridspec_kw={"height_ratios": [1, 1.9]})
    wait, put, multiply, shown = 1.3, 0.5, 2.4, 3
    for i in range(shown):
        start = i * (wait + put + multiply)
        span(above, start, 0, wait, SKY, f"load {i}")
        span(above, start + wait, 0, put, ORANGE, "store")
        span(above, start + wait + put, 0, multiply, GREEN, f"multiply {i}")
        above.vlines([start + wait + put, start + wait + put + multiply], -0.15, 1.15, color=INK, linewidth=2.5)
    titled(above, "one pair of tiles: the multiplier waits for every load, two barriers per pair", loc="left")
    span(below, 0, 0, wait, SKY, "load 0")
    span(below, wait, 1.2, put, ORANGE, "0")
    starts = [wait + put + i * (multiply + put) for i in range(shown + 1)]
    for i, start in enumerate(starts[:-1]):
        span(below, start, 0, wait, SKY, f"load {i + 1}")
        box(below, start + wait, 0, multiply - wait, 1, face=SKY, alpha=0.25, line=0.8)
        label(below, start + wait + (multiply - wait) / 2, 0.5, "has arrived", size=8.5, color=MUTED)
        span(below, start, 3.6, multiply, GREEN, f"{i}, from half {i % 2}")
        span(below, start + multiply, 1.2 + (i + 1) % 2 * 1.2, put, ORANGE, f"{i + 1}")
    below.vlines(starts, -0.15, 4.85, color=INK, linewidth=2.5)
    rows = ((0.5, "load, to registers"), (1.7, "store, to half 0"), (2.9, "store, to half 1"), (4.1, "multiply"))
    for y, name in rows:
        label(below, -0.15, y, name, size=9.5, ha="right")
    label(above, -0.15, 0.5, "one thread", size=9.5, ha="right")
    titled(below, "two pairs of tiles: loads travel under the multiplication, one barrier per pair", loc="left")
    reach = shown * (wait + put + multiply)
    for axes, low in ((above, 1.4), (below, 5.1)):
        frame(axes, (-2.6, reach + 0.2), (low, -0.3), equal=False)
    label(below, reach + 0.2, 4.1, "thick lines:\nbarriers; time\nruns right", size=9.5, color=MUTED, ha="right")
    return figure


def warp_tiles():
    """gemm_warp_tiles' block in warp tiles, and the pieces of one lane of one warp."""
    step = gemm_warp_tiles
    warp_m, warp_n = step.LANES_M * step.THREAD_M, step.LANES_N * step.THREAD_N
    warps_n = step.BLOCK_N // warp_n
    figure, (left, right) = canvas.new_figure(9.6, 3.4, columns=2, gridspec_kw={"width_ratios": [1, 2.1]})
    shades = (SKY, YELLOW, ORANGE, GREEN, PURPLE, BLUE, VERMILION, GRID)
    warps = step.BLOCK_M // warp_m * warps_n
    for warp in range(warps):
        m, n = warp // warps_n * warp_m, warp % warps_n * warp_n
        box(left, n, m, warp_n, warp_m, face=shades[warp % len(shades)], alpha=0.5, line=1.4)
        label(left, n + warp_n / 2, m + warp_m / 2, f"warp {warp}: {warp_m} × {warp_n}", size=10)
    titled(left, f"a block: {step.BLOCK_M} × {step.BLOCK_N}, {32 * warps} threads")
    frame(left, (-1, step.BLOCK_N + 1), (step.BLOCK_M + 1, -1))
    chosen = 9
    for lane in range(WARP):
        base_m, base_n = (lane // 16 * 2 + lane % 2) * VECTOR, lane // 2 % step.LANES_N * VECTOR
        for i in range(0, step.THREAD_M, VECTOR):
            for j in range(0, step.THREAD_N, VECTOR):
                m, n = i * step.LANES_M + base_m, j * step.LANES_N + base_n
                box(right, n, m, VECTOR, VECTOR, face=VERMILION if lane == chosen else "none", line=0.4)
        colour = "white" if lane == chosen else INK
        label(right, base_n + VECTOR / 2, base_m + VECTOR / 2, str(lane), size=6.5, color=colour)
    titled(right, f"warp 0: the pieces of lane {chosen}")
    label(
        right, warp_n / 2, warp_m + 7,
        f"{step.THREAD_M} × {step.THREAD_N} per lane in pieces of {VECTOR} × {VECTOR}; numbers: lanes,\n"
        "the same pattern repeats in every part", size=9.5, color=MUTED,
    )  # fmt: skip
    frame(right, (-1, warp_n + 1), (warp_m + 12, -1))
    return figure


PICTURES = register_tile, banks, overlap, warp_tiles  # each under its function's name
