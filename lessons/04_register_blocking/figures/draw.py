"""The pictures of lesson 04: register tile, banks, occupancy, double buffering, warp tiles, what stays."""

from collections import Counter
from importlib import import_module
from pathlib import Path

from matplotlib.patches import Rectangle

from common.catalog import catalog, problems
from common.report import canvas
from common.report.canvas import BLUE, GREEN, GRID, INK, MUTED, ORANGE, PURPLE, SKY, VERMILION, YELLOW
from common.report.cells import box, frame, label, span, titled
from common.trace import trace

LESSON = "lessons.04_register_blocking."
traced = import_module("lessons.01_naive.figures.traced")
gemm_rectangular_tiles = import_module(LESSON + "gemm_rectangular_tiles")
gemm_register_blocked = import_module(LESSON + "gemm_register_blocked")
gemm_tuned = import_module(LESSON + "gemm_tuned")
conv2d_one_channel = import_module(LESSON + "conv2d_one_channel")
gemm_warp_tiles = import_module(LESSON + "gemm_warp_tiles")
conv2d_register_tiled = import_module(LESSON + "conv2d_register_tiled")
VECTOR = import_module("lessons.toolkit.memory").VECTOR

BANKS = WARP = 32
MULTIPROCESSORS = 132  # of the H200
SM_REGISTERS, SM_WARPS, SM_BLOCKS, REGISTER_STEP = 65536, 64, 32, 8


def draw(folder: Path) -> list[Path]:
    """Write every picture into ``folder``; returns the PNG files."""
    return canvas.save_all(
        folder, register_tile, loads, banks, occupancy, overlap, block_order, warp_tiles, stationary, bank_map
    )


def register_tile():
    """The pieces of a block that one thread owns, and the outer product it adds to them at each k."""
    step = gemm_register_blocked
    threads_x, threads_y = step.BLOCK_N // step.THREAD_N, step.BLOCK_M // step.THREAD_M
    tx, ty = 5, 2
    rows = [i // VECTOR * VECTOR * threads_y + ty * VECTOR + i % VECTOR for i in range(step.THREAD_M)]
    columns = [j // VECTOR * VECTOR * threads_x + tx * VECTOR + j % VECTOR for j in range(step.THREAD_N)]
    figure, (left, right) = canvas.new_figure(9.6, 5.0, columns=2)
    box(left, 0, 0, step.BLOCK_N, step.BLOCK_M, line=1.4)
    for n in range(0, step.BLOCK_N, VECTOR):
        left.plot([n, n], [0, step.BLOCK_M], color=GRID, linewidth=0.5)
    for m in range(0, step.BLOCK_M, VECTOR):
        left.plot([0, step.BLOCK_N], [m, m], color=GRID, linewidth=0.5)
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
    for i, m in enumerate(rows):
        box(right, -1.6, i, 1, 1, face=BLUE, alpha=0.6, line=0.8)
        label(right, -1.1, i + 0.5, str(m), size=8.5)
        for j in range(step.THREAD_N):
            box(right, j, i, 1, 1, face=GREEN, alpha=0.5, line=0.8)
    for j, n in enumerate(columns):
        box(right, j, -1.6, 1, 1, face=ORANGE, alpha=0.7, line=0.8)
        label(right, j + 0.5, -1.1, str(n), size=8.5)
    label(right, step.THREAD_N / 2, -2.2, "b_frag: columns n", size=10)
    right.text(-2.1, step.THREAD_M / 2, "a_frag: rows m", rotation=90, va="center", ha="center", fontsize=10)
    label(
        right, step.THREAD_N / 2, step.THREAD_M / 2, "acc[i, j] += a_frag[i] * b_frag[j]", size=10, weight="bold",
        card=True,
    )  # fmt: skip
    total, products = step.THREAD_M + step.THREAD_N, step.THREAD_M * step.THREAD_N
    label(
        right, step.THREAD_N / 2 - 0.8, step.THREAD_M + 0.8,
        f"at each k: {total} values read, {products} multiply-adds: {total / products:g}", size=10,
    )  # fmt: skip
    titled(right, "in its registers")
    frame(right, (-2.8, step.THREAD_N + 0.3), (step.THREAD_M + 1.4, -2.7))
    return figure


def loads():
    """Values read from shared memory for each multiply-add against the outputs of a thread, by the tile's shape."""
    figure, axes = canvas.new_figure(9.6, 3.9)
    sizes = [2**i for i in range(9)]
    axes.plot(
        sizes, [(size + 1) / size for size in sizes], color=BLUE, marker="o", linewidth=2, label="a column, WPT × 1"
    )
    squares = [(1, 1), (2, 2), (4, 4), (8, 8), (16, 16)]
    axes.plot(
        [m * n for m, n in squares], [(m + n) / (m * n) for m, n in squares], color=VERMILION, marker="s",
        linewidth=2, label="a square, THREAD × THREAD",
    )  # fmt: skip
    for m, n, offset in ((8, 1, (4, 9)), (4, 4, (8, 4)), (8, 8, (8, 4)), (16, 8, (-50, -17)), (16, 16, (-56, 10))):
        if (m, n) == (16, 8):
            axes.plot(m * n, (m + n) / (m * n), "D", color=GREEN, markersize=8, label="neither: gemm_tuned")
        axes.annotate(
            f"{m} × {n}: {(m + n) / (m * n):.4g}", (m * n, (m + n) / (m * n)), xytext=offset,
            textcoords="offset points", fontsize=9.5,
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_ylim(0, 2.1)
    axes.set_xlabel("outputs per thread: each needs a register")
    axes.set_ylabel("values read per multiply-add")
    canvas.gridded(axes)
    axes.legend(frameon=False)
    return figure


def wavefronts(stride, words):
    """Wavefronts that it takes to give each lane ``words`` floats from its own row, rows ``stride`` apart.

    A request of 64 or 128 bits is served for half or a quarter of the warp at a time.
    """
    total = 0
    lanes = WARP // words
    for first in range(0, WARP, lanes):
        wanted = [set() for _ in range(BANKS)]
        for lane in range(first, first + lanes):
            for word in range(words):
                address = lane * stride + word
                wanted[address % BANKS].add(address)
        total += max(len(addresses) for addresses in wanted)
    return total


def widest(pad):
    """Words in the widest aligned read of a row that is BLOCK_K + pad long."""
    return next(words for words in (4, 2, 1) if (gemm_rectangular_tiles.BLOCK_K + pad) % words == 0)


def banks():
    """The bank that each lane of a warp reads from b_tile, for four paddings."""
    pads = (0, 1, 2, 4)
    figure, axes_row = canvas.new_figure(9.6, 3.9, columns=len(pads))
    for axes, pad in zip(axes_row, pads, strict=True):
        stride = gemm_rectangular_tiles.BLOCK_K + pad
        one = wavefronts(stride, 1)
        box(axes, 0, 0, BANKS, WARP, line=0.8)
        for edge in range(8, BANKS, 8):
            axes.plot([edge, edge], [0, WARP], color=GRID, linewidth=0.6)
            axes.plot([0, BANKS], [edge, edge], color=GRID, linewidth=0.6)
        shade = GREEN if one == 1 else (ORANGE if one < 8 else VERMILION)
        for lane in range(WARP):
            axes.add_patch(Rectangle((lane * stride % BANKS, lane), 1, 1, facecolor=shade, edgecolor="none"))
        words = widest(pad)
        four = wavefronts(stride, words) * (VECTOR // words)
        titled(axes, f"PAD = {pad}")
        label(axes, BANKS / 2, WARP + 5.6, f"one float per lane:\n{one} wavefront{'s' if one > 1 else ''}", size=9.5)
        label(
            axes, BANKS / 2, WARP + 12.2, f"four, {32 * words} bits at a time:\n{four} wavefronts", size=9.5,
            color=MUTED,
        )  # fmt: skip
        label(axes, BANKS / 2, -0.8, "bank 0 … 31", size=8.5, color=MUTED, va="bottom")
        frame(axes, (-2.5, BANKS + 0.5), (WARP + 15, -3))
    axes_row[0].text(-1.2, WARP / 2, "lane 0 … 31", rotation=90, fontsize=8.5, va="center", ha="center", color=MUTED)
    return figure


def blocks_per_sm(threads, registers):
    """Blocks that a multiprocessor's registers, warps and limit on blocks allow."""
    rounded = -(-registers // REGISTER_STEP) * REGISTER_STEP
    return min(SM_REGISTERS // (rounded * threads), SM_WARPS * 32 // threads, SM_BLOCKS)


def occupancy():
    """Warps resident on a multiprocessor against registers per thread."""
    figure, axes = canvas.new_figure(9.6, 4.0)
    registers = list(range(16, 256))
    for threads, colour, style in ((128, BLUE, "-"), (256, VERMILION, "-"), (512, GREEN, "--")):
        warps = [blocks_per_sm(threads, r) * threads // 32 for r in registers]
        axes.step(
            registers, warps, where="post", color=colour, linewidth=2, linestyle=style,
            label=f"{threads} threads per block",
        )  # fmt: skip
    axes.plot(registers, [SM_REGISTERS / (32 * r) for r in registers], color=MUTED, linewidth=1, linestyle=":",
              label="65,536 / (32 × registers)")  # fmt: skip
    axes.set_ylim(0, 68)
    axes.set_xlim(16, 256)
    axes.set_xticks(range(32, 257, 32))
    axes.set_yticks(range(0, 65, 8))
    axes.set_xlabel("registers per thread (at most 255)")
    axes.set_ylabel("warps on a multiprocessor")
    canvas.gridded(axes)
    axes.legend(frameon=False, fontsize=9.5)
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
        for wall in (start + wait + put, start + wait + put + multiply):
            above.plot([wall, wall], [-0.15, 1.15], color=INK, linewidth=2.5)
    titled(above, "one pair of tiles: the multiplier waits for every load, two barriers per pair", loc="left")
    span(below, 0, 0, wait, SKY, "load 0")
    span(below, wait, 1.2, put, ORANGE, "0")
    for i in range(shown):
        start = wait + put + i * (multiply + put)
        below.plot([start, start], [-0.15, 4.85], color=INK, linewidth=2.5)
        span(below, start, 0, wait, SKY, f"load {i + 1}")
        box(below, start + wait, 0, multiply - wait, 1, face=SKY, alpha=0.25, line=0.8)
        label(below, start + wait + (multiply - wait) / 2, 0.5, "has arrived", size=8.5, color=MUTED)
        span(below, start, 3.6, multiply, GREEN, f"{i}, from half {i % 2}")
        span(below, start + multiply, 1.2 + (i + 1) % 2 * 1.2, put, ORANGE, f"{i + 1}")
    end = wait + put + shown * (multiply + put)
    below.plot([end, end], [-0.15, 4.85], color=INK, linewidth=2.5)
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


def block_order():
    """Blocks of C that run at the same time, and the strips of A and B that they read, by GROUP_M and size of C."""
    step = gemm_tuned
    resident = MULTIPROCESSORS * step.BLOCKS_PER_SM
    groups, sizes = (1, 8, 16), (4096, 16384)
    figure, grid = canvas.new_figure(9.6, 6.6, rows=len(sizes), columns=len(groups))
    for axes_row, size in zip(grid, sizes, strict=True):
        count = size // step.BLOCK_M
        for axes, group in zip(axes_row, groups, strict=True):
            places = [_place(block, count, group) for block in range(resident)]
            rows, columns = {m for m, _ in places}, {n for _, n in places}
            thick = count / 14
            box(axes, 0, 0, count, count, face=GRID, alpha=0.4, line=0.8)
            for m, n in places:
                box(axes, n, m, 1, 1, face=GREEN, alpha=0.75, line=0)
            for m in rows:
                box(axes, -1.6 * thick, m, thick, 1, face=BLUE, alpha=0.9, line=0)
            for n in columns:
                box(axes, n, -1.6 * thick, 1, thick, face=ORANGE, alpha=0.9, line=0)
            titled(axes, f"{size}, GROUP_M = {group}", size=10.5)
            label(axes, count / 2, 1.07 * count, f"{len(rows)} strips of A, {len(columns)} of B", size=9.5)
            frame(axes, (-0.15 * count, 1.02 * count), (1.12 * count, -0.15 * count))
    note = (
        f"Green: the first {resident} blocks of C. They read the strips of A (blue, left) and of B (orange, above)."
    )
    canvas.footnote(figure, note, 0.04)
    return figure


def _place(block, count, group_m):
    """Row and column of a block of C that is `count` blocks high and wide, as gemm_tuned numbers them."""
    group, place = divmod(block, group_m * count)
    rows = min(count - group * group_m, group_m)
    return group * group_m + place % rows, place // rows


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
                if (i, j) == (0, 0):
                    label(
                        right, n + VECTOR / 2, m + VECTOR / 2, str(lane), size=6.5,
                        color="white" if lane == chosen else INK,
                    )  # fmt: skip
    titled(right, f"warp 0: the pieces of lane {chosen}")
    label(
        right, warp_n / 2, warp_m + 7,
        f"{step.THREAD_M} × {step.THREAD_N} per lane in pieces of {VECTOR} × {VECTOR}; numbers: lanes,\n"
        "the same pattern repeats in every part", size=9.5, color=MUTED,
    )  # fmt: skip
    frame(right, (-1, warp_n + 1), (warp_m + 12, -1))
    return figure


def stationary():
    """What stays in registers and what streams past: conv2d_one_channel, and conv2d_register_tiled on layer 2."""
    figure, (left, right) = canvas.new_figure(9.6, 3.8, columns=2)
    layer = problems.preset("ece408-layer1")
    one = conv2d_one_channel.shipped(layer)
    rows, cols = one["ROWS"], one["COLS"]
    window_h, window_w = rows + layer.R - 1, cols + layer.S - 1
    for h in range(window_h):
        for w in range(window_w):
            box(left, w, h + 1, 1, 1, face=GREEN, alpha=0.6, line=0.8)
    for k in range(3):
        box(left, 9 + 0.7 * k, 1.2 + 0.7 * k, layer.S * 0.8, layer.R * 0.8, face="white", line=0.8)
        box(left, 9 + 0.7 * k, 1.2 + 0.7 * k, layer.S * 0.8, layer.R * 0.8, face=ORANGE, alpha=0.6, line=0.8)
    label(left, window_w / 2, 0.3, f"window: {window_h} × {window_w}", weight="bold", size=10)
    label(left, window_w / 2, window_h + 1.7, "stays in registers", size=10, color=GREEN, weight="bold")
    label(left, 11.7, 0.3, f"{layer.K} filters, one at a time", weight="bold", size=10)
    label(left, 11.7, window_h + 1.7, "stream from shared memory", size=10)
    left.annotate("", (6.7, 4), (8.7, 4), arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1.6})
    label(left, 7, window_h + 3.4, "a filter's sums are stored at once, and forgotten", size=9.5)
    titled(left, f"layer 1, one channel: hold the window ({rows} × {cols} pixels)", size=10.5)
    frame(left, (-0.6, 15.4), (10.2, -0.4))

    layer = problems.preset("ece408-layer2")
    many = conv2d_register_tiled.shipped(layer)
    rows, filters = many["ROWS"], many["FILTERS"]
    window, cell = rows + layer.R - 1, 0.52
    for h in range(window):
        box(right, 0, 1 + h * cell, cell, cell, face=ORANGE, alpha=0.6, line=0.8)
    for i in range(rows):
        for f in range(filters):
            box(right, 6 + f * cell, 1 + (i + layer.R // 2) * cell, cell, cell, face=GREEN, alpha=0.6, line=0.8)
    for f in range(filters):
        box(right, 6 + f * cell, 1, cell, cell, face=SKY, alpha=0.8, line=0.8)
    label(right, 1.3, 0.3, "a column of pixels", weight="bold", size=10)
    label(right, 6 + filters * cell / 2, 0.3, f"{filters} taps", weight="bold", size=10)
    label(
        right, 6 + filters * cell / 2, 1 + (rows / 2 + layer.R // 2) * cell, f"{rows} × {filters} sums",
        weight="bold", size=10, card=True,
    )  # fmt: skip
    label(
        right, 6 + filters * cell / 2, 1 + (rows + layer.R // 2) * cell + 0.5, "stay in registers", size=10,
        color=GREEN, weight="bold",
    )  # fmt: skip
    right.annotate("", (5.7, 4.6), (1, 4.6), arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1.6})
    label(right, 3.2, 5.2, f"streams: {layer.C} channels\n× {layer.S} columns", size=9.5, va="top")
    label(right, 6, 1 + window * cell + 1.2, "the sums are stored once, at the end", size=9.5)
    titled(right, f"layer 2, {layer.C} channels: hold the sums", size=10.5)
    frame(right, (-1.8, 14.2), (10.2, -0.4))
    return figure


def bank_map():
    """A tile in shared memory, 32 banks wide, and what one request reads of it, by the floats that pad its rows."""
    step, array, constant, pads = catalog.find("gemm_rectangular_tiles"), "b_tile", "PAD", (0, 1, 2)
    problem = problems.parse_shape(step.ladder, "M=64 N=64 K=32")
    tasks = [trace.task(step, problem, tile={constant: pad}) for pad in pads]
    figure, axes = canvas.new_figure(
        9.6, 5.3, rows=2, columns=len(pads), gridspec_kw={"height_ratios": [1, 4]}, sharex=True
    )
    for i, (pad, found) in enumerate(zip(pads, trace.results(tasks), strict=True)):
        kernel = found.main
        access = next(a for a in kernel.accesses if (a.array, a.op) == (array, "read"))
        above, below = axes[0, i], axes[1, i]
        places = [place for place in access.sample or [] if place is not None]
        words = Counter(place % BANKS for place in set(places))
        turns = max(words.values())
        colour = GREEN if turns == 1 else ORANGE if turns <= 4 else VERMILION
        above.bar(range(BANKS), [words[bank] for bank in range(BANKS)], width=0.9, color=colour)
        above.set_ylim(0, 34)
        above.set_yticks([1, 16, 32])
        title = f"{constant} = {pad}: {traced.wavefront_count(turns)}"
        titled(above, title, size=11.5)
        row = places[1] - places[0]
        rows = -(-(max(places) + row) // BANKS)
        for word in range(rows * BANKS):
            inside, line = word % row < row - pad, word // row
            if not inside:
                below.plot(word % BANKS, word // BANKS + 0.5, marker=".", markersize=2.5, color=MUTED)
            elif word % row == 0 or word % BANKS == 0:  # a piece of a row of the tile, up to the line's end
                length = min(row - pad - word % row, BANKS - word % BANKS)
                shade = ("#eef3f8", "#dce6ef")[line % 2]
                traced.fill(below, word % BANKS - 0.5, word // BANKS, length, 1, shade)
        for place in places:
            traced.fill(below, place % BANKS - 0.5, place // BANKS, 1, 1, colour)
        below.set_ylim(rows, 0)
        below.set_xlim(-0.5, BANKS - 0.5)
        below.set_xticks([0, 8, 16, 24, 31])
        below.set_yticks([])
        below.set_xlabel("bank")
        for axis in (above, below):
            axis.tick_params(labelsize=8.5)
    note = "Coloured: the floats that the 32 lanes of a warp read at once. Dots: padding."
    canvas.footnote(figure, note, 0.03, y=0.005, size=9)
    axes[0, 0].set_ylabel("floats\nper bank", fontsize=9.5)
    axes[1, 0].set_ylabel(f"{array} in memory, 32 floats a line", fontsize=9.5)
    return figure
