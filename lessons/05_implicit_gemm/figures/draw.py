"""The pictures of lesson 05: the worked example, memory, tiles over (t, r, s, c), who loads what, offsets, masks,
waves, and two traces."""

import math
from importlib import import_module
from pathlib import Path

from common.catalog import catalog, problems
from common.report import canvas
from common.report.canvas import BLUE, GREEN, GRID, INK, MUTED, ORANGE, PURPLE, SKY, VERMILION, YELLOW
from common.report.cells import box, frame, label, outline, titled
from common.trace import trace

traced = import_module("lessons.01_naive.figures.traced")
analytic = import_module("lessons.05_implicit_gemm.conv3d_implicit_gemm")
step = import_module("lessons.05_implicit_gemm.conv3d_implicit_gemm_precomputed")
VECTOR = import_module("lessons.toolkit.memory").VECTOR
LESSON = Path(__file__).parents[1].name

WARP = 32
MULTIPROCESSORS = 132  # of the H200
# The worked example: NHWC = {1, 4, 4, 3}, KRSC = {4, 2, 2, 3}, and the output that is followed through it.
H = W = 4
C, K, R, S = 3, 4, 2, 2
P, Q = H - R + 1, W - S + 1
CHOSEN_P, CHOSEN_Q, CHOSEN_K = 1, 2, 2
TAPS = (SKY, ORANGE, GREEN, YELLOW)  # a colour for each (r, s)


def draw(folder: Path) -> list[Path]:
    """Write every picture into ``folder``; returns the PNG files."""
    return canvas.save_all(
        folder, tensors, matrices, memory, walk, loads, offsets, masks, lanes, staging, waves=waves(False),
        waves_own=waves(True), loads_per_fma=traced.loads_per_fma("conv3d", through=LESSON),
    )  # fmt: skip


def tensors():
    """x, filt and y of the worked example, row by row as they lie in memory; the numbers are places in it."""
    figure, axes = canvas.new_figure(9.6, 2.3)
    for h in range(H):
        for w in range(W):
            tap = (h - CHOSEN_P, w - CHOSEN_Q)
            inside = 0 <= tap[0] < R and 0 <= tap[1] < S
            _pixel(axes, w * C, h, (h * W + w) * C, C, TAPS[tap[0] * S + tap[1]] if inside else "none")
    outline(axes, CHOSEN_Q * C, CHOSEN_P, S * C, R, zorder=3)
    label(axes, W * C / 2, -0.75, f"x[n, h, w, c]: 1 × {H} × {W} × {C}", weight="bold")
    label(axes, W * C / 2, H + 0.7, f"{C} neighbours are the\nchannels of one pixel", size=9, color=MUTED, va="top")
    left = W * C + 2.4
    for k in range(K):
        x0, y0 = left + k % 2 * (S * C + 0.9), k // 2 * (R + 1.1) - 0.2
        for r in range(R):
            for s in range(S):
                _pixel(axes, x0 + s * C, y0 + r, ((k * R + r) * S + s) * C, C, TAPS[r * S + s])
        if k == CHOSEN_K:
            outline(axes, x0, y0, S * C, R, zorder=3)
        label(axes, x0 + S * C / 2, y0 + R + 0.5, f"k = {k}", size=8.5, color=MUTED)
    label(axes, left + S * C + 0.45, -0.75, f"filt[k, r, s, c]: {K} × {R} × {S} × {C}", weight="bold")
    label(axes, left + S * C + 0.45, 6.45, "a colour for each tap (r, s)", size=9, color=MUTED, va="top")
    left += 2 * S * C + 3.3
    for p in range(P):
        for q in range(Q):
            _pixel(axes, left + q * K, p, (p * Q + q) * K, K, "none")
    chosen = left + CHOSEN_Q * K + CHOSEN_K
    box(axes, chosen, CHOSEN_P, 1, 1, face=VERMILION, line=0.8)
    _number(axes, chosen, CHOSEN_P, ((CHOSEN_P * Q) + CHOSEN_Q) * K + CHOSEN_K, color="white")
    label(axes, left + Q * K / 2, -0.75, f"y[n, p, q, k]: 1 × {P} × {Q} × {K}", weight="bold")
    label(
        axes, left + Q * K / 2, P + 0.7,
        f"followed through this page:\np = {CHOSEN_P}, q = {CHOSEN_Q}, k = {CHOSEN_K}", size=9, color=VERMILION,
        va="top",
    )  # fmt: skip
    frame(axes, (-0.4, left + Q * K + 0.4), (7.0, -1.3))
    return figure


def matrices():
    """The worked example as A @ B = C; the numbers are places in x, filt and y."""
    gemm_m_extent, gemm_k_extent = P * Q, R * S * C
    chosen_m = CHOSEN_P * Q + CHOSEN_Q
    figure, axes = canvas.new_figure(9.6, 5.3)
    top = (gemm_k_extent - gemm_m_extent) / 2
    for gemm_m in range(gemm_m_extent):
        p, q = divmod(gemm_m, Q)
        for gemm_k in range(gemm_k_extent):
            r, s, c = gemm_k // (S * C), gemm_k // C % S, gemm_k % C
            alpha = 0.75 if gemm_m == chosen_m else 0.25
            box(axes, gemm_k, top + gemm_m, 1, 1, face=TAPS[r * S + s], alpha=alpha, line=0.5)
            _number(axes, gemm_k, top + gemm_m, ((p + r) * W + q + s) * C + c)
        label(axes, -0.25, top + gemm_m + 0.5, f"({p}, {q})", size=8, color=MUTED, ha="right")
    for tap in range(R * S):
        label(axes, tap * C + C / 2, top - 0.4, f"tap ({tap // S}, {tap % S})", size=8, color=MUTED)
    label(axes, -0.25, top - 0.4, "(p, q)", size=8, color=MUTED, ha="right")
    outline(axes, 0, top + chosen_m, gemm_k_extent, 1, zorder=3)
    title = f"A: GEMM_M × GEMM_K = {gemm_m_extent} × {gemm_k_extent}"
    label(axes, gemm_k_extent / 2, top - 1.3, title, weight="bold")
    label(
        axes, gemm_k_extent / 2, top + gemm_m_extent + 0.7,
        f"{gemm_m_extent * gemm_k_extent} elements, but x has only {H * W * C}: A is never written", size=9.5,
        color=MUTED,
    )  # fmt: skip
    left = gemm_k_extent + 3.0
    label(axes, left - 1.5, gemm_k_extent / 2, "@", size=15)
    for gemm_k in range(gemm_k_extent):
        for k in range(K):
            alpha = 0.75 if k == CHOSEN_K else 0.25
            box(axes, left + k, gemm_k, 1, 1, face=TAPS[gemm_k // C], alpha=alpha, line=0.5)
            _number(axes, left + k, gemm_k, k * gemm_k_extent + gemm_k)
    for k in range(K):
        label(axes, left + k + 0.5, -0.4, str(k), size=8, color=MUTED)
    outline(axes, left + CHOSEN_K, 0, 1, gemm_k_extent, zorder=3)
    label(axes, left + K / 2, -1.3, f"B: {gemm_k_extent} × {K}", weight="bold")
    label(
        axes, left + K / 2, gemm_k_extent + 0.7, "column k is filter k\nas it lies in memory", size=9.5, color=MUTED,
        va="top",
    )  # fmt: skip
    left += K + 3.0
    label(axes, left - 1.5, gemm_k_extent / 2, "=", size=15)
    for gemm_m in range(gemm_m_extent):
        for k in range(K):
            hit = (gemm_m, k) == (chosen_m, CHOSEN_K)
            box(axes, left + k, top + gemm_m, 1, 1, face=VERMILION if hit else "none", line=0.5)
            _number(axes, left + k, top + gemm_m, gemm_m * K + k, color="white" if hit else INK)
    label(axes, left + K / 2, top - 1.3, f"C: {gemm_m_extent} × {K}", weight="bold")
    label(
        axes, left + K / 2, top + gemm_m_extent + 0.7, "is y\nas it lies in memory", size=9.5, color=MUTED, va="top"
    )
    frame(axes, (-1.7, left + K + 0.6), (gemm_k_extent + 2.4, -2.0))
    return figure


def memory():
    """Bytes of the input and of A written out, for each layer; implicit GEMM needs no more than the input."""
    names = [name for ladder in ("conv2d", "conv3d") for name in problems.timed_presets(ladder)]
    figure, axes = canvas.new_figure(9.6, 1.5 + 0.52 * len(names))
    for place, name in enumerate(names):
        layer = problems.preset(name)
        x_mb = 4e-6 * math.prod(layer.input_shape)
        u_mb = 4e-6 * math.prod(layer.output_shape) / layer.K * layer.reduction
        for y, size, colour, what in (
            (place - 0.19, x_mb, GREEN, "x, all that implicit GEMM stores"),
            (place + 0.19, u_mb, VERMILION, "A written out (explicit GEMM)"),
        ):
            axes.barh(y, size, height=0.36, color=colour, label="" if place else what)
        axes.annotate(f"{x_mb:,.3g} MB", (x_mb, place - 0.19), xytext=(4, 0), textcoords="offset points", va="center",
                      fontsize=8.5)  # fmt: skip
        axes.annotate(f"{u_mb:,.0f} MB, {u_mb / x_mb:.3g} × x", (u_mb, place + 0.19), xytext=(4, 0),
                      textcoords="offset points", va="center", fontsize=8.5, fontweight="bold")  # fmt: skip
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(0.5, 1e5)
    axes.set_xticks([1, 10, 100, 1000, 10_000], ["1", "10", "100", "1,000", "10,000"])
    axes.set_xlabel("MB (logarithmic)")
    canvas.gridded(axes, "x")
    axes.tick_params(axis="y", length=0)
    figure.legend(loc="outside upper left", ncols=2, frameon=False, fontsize=10)
    return figure


def walk():
    """A strip of gemm_k in tiles, and the pixels that a block of rows reads in some of them."""
    t_extent, r_extent, s_extent, tiles_per_tap = 2, 3, 3, 2
    per_t = r_extent * s_extent * tiles_per_tap
    shown = (0, 1, 2, r_extent * tiles_per_tap, per_t)
    figure, axes_all = canvas.new_figure(9.6, 5.0, rows=2, gridspec_kw={"height_ratios": [1, 1.5]})
    strip, below = axes_all
    tile_count = t_extent * per_t
    for tile in range(tile_count):
        t, r, s = tile // per_t, tile // (s_extent * tiles_per_tap) % r_extent, tile // tiles_per_tap % s_extent
        box(strip, tile, 0, 1, 1, face=BLUE if tile in shown else (SKY, YELLOW)[tile // tiles_per_tap % 2],
             alpha=1 if tile in shown else 0.45, line=0.5)  # fmt: skip
        label(strip, tile + 0.5, 0.5, str(tile), size=7.5, color="white" if tile in shown else INK)
        if tile % tiles_per_tap == 0:
            label(strip, tile + tiles_per_tap / 2, -0.5, f"s = {s}", size=7.5)
        if tile % (s_extent * tiles_per_tap) == 0:
            _bracket(strip, tile, s_extent * tiles_per_tap, -1.0, f"r = {r}")
        if tile % per_t == 0:
            _bracket(strip, tile, per_t, -2.3, f"t = {t}")
    label(
        strip, tile_count / 2, 1.6,
        f"gemm_k runs right, a tile is BLOCK_K wide; C = {tiles_per_tap} × BLOCK_K, {tiles_per_tap} tiles per tap",
        size=9.5, color=MUTED,
    )  # fmt: skip
    frame(strip, (-0.3, tile_count + 0.3), (2.1, -3.5), equal=False)
    size, pad = 5, 1
    deltas = ("start", "c moves", "s moves", "r moves", "t moves")
    for place, (tile, delta) in enumerate(zip(shown, deltas, strict=True)):
        t, r, s = tile // per_t, tile // (s_extent * tiles_per_tap) % r_extent, tile // tiles_per_tap % s_extent
        c = tile % tiles_per_tap
        left = place * (size + 2 * pad + 1.5)
        for h in range(-pad, size + pad):
            for w in range(-pad, size + pad):
                outside = not (0 <= h < size and 0 <= w < size)
                read = 0 <= h + pad - r < size and 0 <= w + pad - s < size
                if outside and not read:
                    continue
                face = "none" if not read else (ORANGE if outside else BLUE)
                box(below, left + pad + w, pad + h, 1, 1, face=face, alpha=0.55, line=0.5)
        middle = left + pad + size / 2
        label(below, middle, -0.9, f"tile {tile}: {delta}", size=9.5, weight="bold")
        label(
            below, middle, size + 2 * pad + 0.8,
            f"t, r, s = {t}, {r}, {s}{', next plane' if t else ''}\nchannels from {'0' if c == 0 else 'BLOCK_K'}",
            size=9, va="top",
        )  # fmt: skip
    label(
        below, 2.5 * (size + 2 * pad + 1.5) - 0.75, size + 2 * pad + 3.4,
        f"x: {size} × {size} pixels, padding 1, filter {r_extent} × {s_extent}. Blue: read by the rows of one image. "
        "Orange: outside, count as zero",
        size=9.5, color=MUTED,
    )  # fmt: skip
    frame(below, (-0.6, 5 * (size + 2 * pad + 1.5) - 0.6), (size + 2 * pad + 4, -1.6))
    return figure


def loads():
    """Who copies which element of the tile of A: the tile by rounds, one warp by threads, and where that is in x."""
    layer = problems.preset("c3d-conv3a")
    tile = analytic.shipped(layer)
    block_m, block_k = tile["BLOCK_M"], tile["BLOCK_K"]
    columns = block_k // VECTOR  # groups of four in a row of the tile
    threads = _threads(tile)
    rows = threads // columns
    turns, per_warp = block_m // rows, WARP // columns
    colours = (SKY, ORANGE, GREEN, YELLOW, PURPLE, BLUE, VERMILION, GRID)
    figure, (left, middle, right) = canvas.new_figure(
        9.6, 4.6, columns=3, gridspec_kw={"width_ratios": [1, 2.2, 2.2]}
    )
    for turn in range(turns):
        box(left, 0, turn * rows, columns * 4, rows, face=colours[turn % len(colours)], alpha=0.35, line=0.8)
        box(left, 0, turn * rows, columns * 4, per_warp, face=colours[turn % len(colours)], line=0.3)
        text = f"round {turn}: rows {turn * rows}\nto {turn * rows + rows - 1}"
        label(left, columns * 2, turn * rows + per_warp + (rows - per_warp) / 2, text, size=8.5)
    titled(left, f"a_tile: {block_m} × {block_k},\n{threads} threads", size=10.5)
    label(left, columns * 2, block_m + 5, "strong: warp 0", size=9.5, color=MUTED)
    frame(left, (-1, columns * 4 + 1), (block_m + 9, -1), equal=False)

    for thread in range(WARP):
        row, column = _copied_row(thread // columns, rows, block_k), thread % columns
        box(middle, column * VECTOR, row, VECTOR, 1, face=colours[0], alpha=0.35, line=1.1)
        label(middle, column * VECTOR + VECTOR / 2, row + 0.5, str(thread), size=9.5)
        if column == 0:
            label(middle, -0.3, row + 0.5, f"row {row}", size=9, ha="right")
    titled(middle, f"warp 0 in round 0: {per_warp} rows,\n{VECTOR} floats per thread", size=10.5)
    label(middle, block_k / 2, per_warp + 0.55, "numbers: threads; along a row gemm_k grows", size=9, color=MUTED)
    frame(middle, (-2.6, block_k + 0.3), (per_warp + 1.1, -0.3), equal=False)

    pieces, now = layer.C // block_k, 2
    for row in range(per_warp):
        for piece in range(pieces):
            box(
                right, piece, row, 1, 1, face=colours[0] if piece == now else "none",
                line=1.1 if piece == now else 0.4,
            )  # fmt: skip
        label(right, -0.2, row + 0.5, f"w0 + {row}" if row else "w0", size=9, ha="right")
    first = now * block_k
    titled(
        right, f"in x, third tile of a tap:\nchannels {first} to {first + block_k - 1} of {per_warp} pixels",
        size=10.5,
    )  # fmt: skip
    label(
        right, pieces / 2, per_warp + 0.55, f"a line: the {layer.C} channels of a pixel; the next line follows",
        size=9, color=MUTED,
    )  # fmt: skip
    frame(right, (-1.6, pieces + 0.3), (per_warp + 1.1, -0.3), equal=False)
    return figure


def _copied_row(number, rows, block_k):
    """The row that the threads copy which would copy row `number` in plain order, of `rows` copied at a time."""
    group = math.gcd(8, rows)
    together = min(group, max(1, 32 // block_k))
    return number // group * group + number % group // together + number % together * (group // together)


def offset(layer, gemm_k):
    """Floats from the corner of a window to the element gemm_k of it."""
    t, r, s, c = (
        gemm_k // (layer.R * layer.S * layer.C), gemm_k // (layer.S * layer.C) % layer.R,
        gemm_k // layer.C % layer.S, gemm_k % layer.C,
    )  # fmt: skip
    return ((t * layer.dilation_d * layer.H + r * layer.dilation_h) * layer.W + s * layer.dilation_w) * layer.C + c


def offsets():
    """The table of offsets of c3d-conv3a: a staircase, and its four kinds of steps."""
    layer = problems.preset("c3d-conv3a")
    block_k = step.shipped(layer)["BLOCK_K"]
    tiles = range(0, layer.reduction, block_k)
    values = [offset(layer, gemm_k) for gemm_k in tiles]
    per_tap = layer.C // block_k
    kinds = (
        ("next channels", 1),
        ("next s", per_tap),
        ("next r", per_tap * layer.S),
        ("next t", per_tap * layer.S * layer.R),
    )
    figure, (left, right) = canvas.new_figure(9.6, 4.0, columns=2, gridspec_kw={"width_ratios": [1.5, 1]})
    left.plot(range(len(values)), [v / 1000 for v in values], ".", color=BLUE, markersize=4)
    for t in range(layer.T):
        start = t * per_tap * layer.S * layer.R
        left.annotate(f"t = {t}", (start + per_tap * layer.S * layer.R / 2, values[start] / 1000), xytext=(0, 20),
                      textcoords="offset points", ha="center", fontsize=9.5)  # fmt: skip
    left.set_xlabel(f"tile of BLOCK_K = {block_k} along gemm_k")
    left.set_ylabel("offset, thousands of floats")
    left.set_xlim(-3, len(values))
    left.set_ylim(-5, 1.22 * values[-1] / 1000)
    left.grid(color=GRID, linewidth=0.8)
    titled(left, "the first entry of each tile, 3 × 3 × 3 taps", loc="left")
    shown = 2 * per_tap * layer.S
    right.plot(range(shown), [v / 1000 for v in values[:shown]], ".", color=BLUE, markersize=5)
    right.set_xlim(-1, shown)
    right.set_ylim(-0.1, 1.5 * values[shown - 1] / 1000)
    right.set_xlabel("the first tiles, offsets as on the left")
    right.grid(color=GRID, linewidth=0.8)
    lines = [f"{what}: + {values[tile] - values[tile - 1]:,}" for what, tile in kinds]
    right.text(
        0.04, 0.97, "\n".join(lines), transform=right.transAxes, va="top", fontsize=9.5, linespacing=1.5,
        bbox={"facecolor": canvas.PAPER, "edgecolor": "none", "pad": 2},
    )  # fmt: skip
    titled(right, "its kinds of steps, in floats", loc="left")
    for axes in (left, right):
        axes.set_axisbelow(True)
    return figure


def masks():
    """Four outputs at a padded border: their taps, the mask of each as the step codes it, and the test of one tap."""
    height, width, extent, pad = 5, 6, 3, 1
    tap_r, tap_s = 0, 2
    figure, axes_row = canvas.new_figure(9.6, 4.6, columns=4)
    for axes, (p, q, where) in zip(
        axes_row, ((0, 0, "a corner"), (0, 2, "an edge"), (2, 2, "inside"), (4, 5, "the last")), strict=True
    ):
        rows = [not 0 <= p - pad + r < height for r in range(extent)]
        columns = [not 0 <= q - pad + s < width for s in range(extent)]
        for h in range(-pad, height + pad):
            for w in range(-pad, width + pad):
                outside = not (0 <= h < height and 0 <= w < width)
                box(axes, w, h, 1, 1, face=GRID if outside else "none", alpha=0.6, line=0.5)
        for r in range(extent):
            for s in range(extent):
                out = rows[r] or columns[s]
                box(axes, q - pad + s, p - pad + r, 1, 1, face=VERMILION if out else GREEN, alpha=0.65, line=0.5)
                label(axes, q - pad + s + 0.5, p - pad + r + 0.5, "0" if out else "x", size=8.5)
        outline(axes, q - pad + tap_s, p - pad + tap_r, 1, 1, zorder=3)
        titled(axes, f"{where}: p = {p}, q = {q}", size=10.5)
        # bit 0 on the right, as in a binary number: t, then r, then s
        mask = [False, *rows, *columns]
        entry = [True, *(r == tap_r for r in range(extent)), *(s == tap_s for s in range(extent))]
        both = [a and b for a, b in zip(mask, entry, strict=True)]
        left, last = 1.4 - pad, len(mask) - 1
        for place, (name, bits) in enumerate((("mask", mask), ("tap", entry), ("and", both))):
            y = height + pad + 1.7 + 1.25 * place
            label(axes, left - 0.3, y + 0.5, name, size=9.5, ha="right")
            for bit, on in enumerate(bits):
                face = "none" if not on else SKY if bits is entry else VERMILION
                box(axes, left + last - bit, y, 1, 1, face=face, alpha=0.65, line=0.5)
                label(axes, left + last - bit + 0.5, y + 0.5, str(int(on)), size=9)
        for first, letter, count in ((0, "t", 1), (1, "r", extent), (1 + extent, "s", extent)):
            label(axes, left + last + 1 - first - count / 2, height + pad + 1.2, letter, size=9, color=MUTED)
        verdict = "not 0: outside" if any(both) else "0: copy x"
        label(axes, left + 3.5, height + pad + 5.95, verdict, size=9.5, weight="bold")
        frame(axes, (-pad - 1.4, width + pad + 0.6), (height + pad + 6.8, -pad - 0.3))
    note = (
        f"A bit of the mask is 1 where that t, r or s falls outside. A tap, here ({tap_r}, {tap_s}), has one bit for "
        "each of its three.\nBit 0 stands on the right."
    )
    canvas.footnote(figure, note, 0.09, y=0.02)
    return figure


def lanes():
    """Which rows of the two tiles a lane reads, and which filter a row of b_tile holds."""
    lanes_m, lanes_n, thread_n = analytic.LANES_M, analytic.LANES_N, 8
    figure, (left, right) = canvas.new_figure(9.6, 3.9, columns=2)
    shades = (SKY, ORANGE, GREEN, YELLOW, PURPLE, BLUE, VERMILION, GRID)
    chosen = 5
    for lane in range(WARP):
        m, n = lane // 16 * 2 + lane % 2, lane // 2 % lanes_n
        box(left, n, m, 1, 1, face=shades[n], alpha=0.75 if n == chosen // 2 else 0.3, line=0.5)
        label(left, n + 0.5, m + 0.5, str(lane), size=9.5, weight="bold" if lane == chosen else "normal")
    outline(left, chosen // 2 % lanes_n, chosen // 16 * 2 + chosen % 2, 1, 1, zorder=3)
    for n in range(lanes_n):
        label(left, n + 0.5, -0.35, str(n), size=9, color=MUTED)
    for m in range(lanes_m):
        label(left, -0.35, m + 0.5, str(m), size=9, color=MUTED)
    titled(left, "the 32 lanes of a warp", size=10.5)
    label(left, lanes_n / 2, -0.95, f"first row of b_tile, then every {lanes_n}th", size=9, color=MUTED)
    left.text(-0.95, lanes_m / 2, f"first row of a_tile,\nthen every {lanes_m}th", rotation=90, fontsize=9,
              color=MUTED, ha="center", va="center")  # fmt: skip
    label(left, lanes_n / 2, lanes_m + 0.5, f"lane {chosen}: row {chosen // 16 * 2 + chosen % 2} of a_tile, row "
           f"{chosen // 2} of b_tile", size=9.5)  # fmt: skip
    frame(left, (-1.6, lanes_n + 0.2), (lanes_m + 1.0, -1.4))
    for j in range(thread_n):
        for n in range(lanes_n):
            held = j // VECTOR * VECTOR * lanes_n + n * VECTOR + j % VECTOR
            mine = n == chosen // 2
            box(right, n, j, 1, 0.8, face=shades[n], alpha=0.75 if mine else 0.3, line=0.5)
            label(right, n + 0.5, j + 0.4, str(held), size=9.5, weight="bold" if mine else "normal")
        first = j * lanes_n
        label(right, -0.2, j + 0.4, f"rows {first} to {first + lanes_n - 1}", size=9, ha="right")
    titled(right, "which filter a row of b_tile holds", size=10.5)
    rows = ", ".join(str(chosen // 2 + j * lanes_n) for j in range(VECTOR))
    held = chosen // 2 * VECTOR
    label(right, lanes_n / 2 - 1, thread_n + 0.5, f"lane {chosen} reads rows {rows}, ... and finds filters "
           f"{held} to {held + VECTOR - 1}, ...", size=9.5)  # fmt: skip
    frame(right, (-2.6, lanes_n + 0.2), (thread_n + 1.0, -0.3))
    return figure


def waves(own_tiles):
    """The used share of the waves' places by SPLIT_K, layer by layer: with one tile for all, or with the step's."""
    splits = range(1, 9)
    large = step.shipped(problems.preset("c3d-conv3a"))
    names = problems.timed_presets("conv3d")
    figure, axes = canvas.new_figure(7.2, 1.3 + 0.34 * len(names))
    for place, name in enumerate(names):
        own = step.shipped(problems.preset(name))
        tile = own if own_tiles else large
        for split in splits:
            blocks = _blocks(name, tile) * split
            share = blocks / (-(-blocks // _places(tile)) * _places(tile))
            box(axes, split - 0.5, place - 0.5, 1, 1, face=GREEN, alpha=max(0.0, share - 0.3) ** 2, line=0.4)
            label(axes, split, place, f"{100 * share:.0f}", size=9)
        if own_tiles:
            outline(axes, own["SPLIT_K"] - 0.5, place - 0.5, 1, 1, zorder=3)
    axes.set_xlim(0.5, splits[-1] + 0.5)
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.set_xticks(splits)
    axes.set_xlabel("SPLIT_K")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    one = f"{large['BLOCK_M']} × {large['BLOCK_N']} for every layer"
    title = "the step's tile (framed: its SPLIT_K)" if own_tiles else one
    titled(axes, title, loc="left")
    axes.set_yticks(range(len(names)), names)
    figure.suptitle("% of the waves' places that hold a block", fontsize=10, color=MUTED, x=0.01, ha="left")
    return figure


def staging():
    """One request of every copy from global memory of a step, of its arrival in ``tiles``, and of its reads there."""
    step, array = catalog.find("conv3d_implicit_gemm"), "tiles"
    (found,) = trace.results([trace.task(step, trace.SHAPES[step.ladder][0])])
    kernel = found.main

    def those(space, op):
        wanted = [a for a in kernel.accesses if (a.space, a.op) == (space, op)]
        return [a for a in wanted if space == "global" or a.array == array]

    # the first operand on the left: it is copied first and read last
    chosen = [*those("global", "copy"), *those("shared", "copy"), *those("shared", "read")[::-1]]
    return traced.in_pairs(chosen, 0.2)


def _blocks(name, tile):
    """Blocks of a layer without a split of gemm_k."""
    layer = problems.preset(name)
    rows = math.prod(layer.output_shape) // layer.K
    return -(-rows // tile["BLOCK_M"]) * -(-layer.K // tile["BLOCK_N"])


def _places(tile):
    return MULTIPROCESSORS * tile["BLOCKS_PER_SM"]


def _threads(tile):
    warps = (
        tile["BLOCK_M"]
        // (analytic.LANES_M * tile["THREAD_M"])
        * (tile["BLOCK_N"] // (analytic.LANES_N * tile["THREAD_N"]))
    )
    return warps * WARP


def _pixel(axes, x, y, first, channels, colour):
    """One pixel: its channels side by side, numbered by their places in memory, and a stronger frame."""
    for c in range(channels):
        box(axes, x + c, y, 1, 1, face=colour, alpha=0.6, line=0.3)
        _number(axes, x + c, y, first + c)
    box(axes, x, y, channels, 1, line=1.1)


def _number(axes, x, y, number, color=INK):
    label(axes, x + 0.5, y + 0.52, str(number), size=7.5, color=color)


def _bracket(axes, x, width, y, text):
    ends = x + 0.1, x + width - 0.1
    axes.plot([ends[0], *ends, ends[1]], [y, y - 0.25, y - 0.25, y], color=MUTED, linewidth=1)
    label(axes, x + width / 2, y - 0.65, text, size=9)
