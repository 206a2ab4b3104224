"""The pictures of lesson 05: the worked example, tiles over (t, r, s, c), who loads what, masks, memory."""

from pathlib import Path

import numpy as np
from matplotlib.colors import to_rgba
from matplotlib.patches import Rectangle

from common import charts, problems
from common.charts import BLUE, GREEN, GRID, INK, MUTED, ORANGE, SKY, VERMILION, YELLOW

# The worked example: NHWC = {1, 4, 4, 3}, KRSC = {4, 2, 2, 3}, and the output that is followed through it.
H = W = 4
C, K, R, S = 3, 4, 2, 2
P, Q = H - R + 1, W - S + 1
CHOSEN_P, CHOSEN_Q, CHOSEN_K = 1, 2, 2
TAPS = (SKY, ORANGE, GREEN, YELLOW)  # a colour for each (r, s)


def draw(folder: Path) -> list[Path]:
    """Write every picture into ``folder``; returns the PNG files."""
    return [
        charts.save(tensors(), folder / "tensors"),
        charts.save(matrices(), folder / "matrices"),
        charts.save(memory(), folder / "memory"),
        charts.save(walk(), folder / "walk"),
        charts.save(masks(), folder / "masks"),
    ]


def tensors():
    """x, filt and y of the worked example, row by row as they lie in memory; the numbers are places in it."""
    figure, axes = charts.new_figure(9.6, 2.3)
    for h in range(H):
        for w in range(W):
            tap = (h - CHOSEN_P, w - CHOSEN_Q)
            inside = 0 <= tap[0] < R and 0 <= tap[1] < S
            _pixel(axes, w * C, h, (h * W + w) * C, C, TAPS[tap[0] * S + tap[1]] if inside else "none")
    _outline(axes, CHOSEN_Q * C, CHOSEN_P, S * C, R)
    _label(axes, W * C / 2, -0.75, f"x[n, h, w, c]: 1 × {H} × {W} × {C}", weight="bold")
    _label(axes, W * C / 2, H + 0.7, f"{C} neighbours are the\nchannels of one pixel", size=9, color=MUTED, va="top")
    left = W * C + 2.4
    for k in range(K):
        x0, y0 = left + k % 2 * (S * C + 0.9), k // 2 * (R + 0.9) - 0.2
        for r in range(R):
            for s in range(S):
                _pixel(axes, x0 + s * C, y0 + r, ((k * R + r) * S + s) * C, C, TAPS[r * S + s])
        if k == CHOSEN_K:
            _outline(axes, x0, y0, S * C, R)
        _label(axes, x0 + S * C / 2, y0 + R + 0.33, f"k = {k}", size=8.5, color=MUTED)
    _label(axes, left + S * C + 0.45, -0.75, f"filt[k, r, s, c]: {K} × {R} × {S} × {C}", weight="bold")
    _label(axes, left + S * C + 0.45, 6.15, "a colour for each tap (r, s)", size=9, color=MUTED, va="top")
    left += 2 * S * C + 3.3
    for p in range(P):
        for q in range(Q):
            _pixel(axes, left + q * K, p, (p * Q + q) * K, K, "none")
    chosen = left + CHOSEN_Q * K + CHOSEN_K
    _box(axes, chosen, CHOSEN_P, 1, 1, face=VERMILION, line=0.8)
    _number(axes, chosen, CHOSEN_P, ((CHOSEN_P * Q) + CHOSEN_Q) * K + CHOSEN_K, color="white")
    _label(axes, left + Q * K / 2, -0.75, f"y[n, p, q, k]: 1 × {P} × {Q} × {K}", weight="bold")
    _label(
        axes, left + Q * K / 2, P + 0.7,
        f"followed through this page:\np = {CHOSEN_P}, q = {CHOSEN_Q}, k = {CHOSEN_K}", size=9, color=VERMILION,
        va="top",
    )  # fmt: skip
    _frame(axes, (-0.4, left + Q * K + 0.4), (7.0, -1.3))
    return figure


def matrices():
    """The worked example as A @ B = C; the numbers are places in x, filt and y."""
    gemm_m_extent, gemm_k_extent = P * Q, R * S * C
    chosen_m = CHOSEN_P * Q + CHOSEN_Q
    figure, axes = charts.new_figure(9.6, 5.3)
    top = (gemm_k_extent - gemm_m_extent) / 2
    for gemm_m in range(gemm_m_extent):
        p, q = divmod(gemm_m, Q)
        for gemm_k in range(gemm_k_extent):
            r, s, c = gemm_k // (S * C), gemm_k // C % S, gemm_k % C
            alpha = 0.75 if gemm_m == chosen_m else 0.25
            _box(axes, gemm_k, top + gemm_m, 1, 1, face=TAPS[r * S + s], alpha=alpha, line=0.5)
            _number(axes, gemm_k, top + gemm_m, ((p + r) * W + q + s) * C + c)
        axes.text(-0.25, top + gemm_m + 0.5, f"({p}, {q})", fontsize=8, ha="right", va="center", color=MUTED)
    for tap in range(R * S):
        _label(axes, tap * C + C / 2, top - 0.4, f"tap ({tap // S}, {tap % S})", size=8, color=MUTED)
    axes.text(-0.25, top - 0.4, "(p, q)", fontsize=8, ha="right", va="center", color=MUTED)
    _outline(axes, 0, top + chosen_m, gemm_k_extent, 1)
    title = f"A: GEMM_M × GEMM_K = {gemm_m_extent} × {gemm_k_extent}"
    _label(axes, gemm_k_extent / 2, top - 1.3, title, weight="bold")
    _label(
        axes, gemm_k_extent / 2, top + gemm_m_extent + 0.7,
        f"{gemm_m_extent * gemm_k_extent} elements, but x has only {H * W * C}: A is never written", size=9.5,
        color=MUTED,
    )  # fmt: skip
    left = gemm_k_extent + 3.0
    _label(axes, left - 1.5, gemm_k_extent / 2, "@", size=15)
    for gemm_k in range(gemm_k_extent):
        for k in range(K):
            alpha = 0.75 if k == CHOSEN_K else 0.25
            _box(axes, left + k, gemm_k, 1, 1, face=TAPS[gemm_k // C], alpha=alpha, line=0.5)
            _number(axes, left + k, gemm_k, k * gemm_k_extent + gemm_k)
    for k in range(K):
        _label(axes, left + k + 0.5, -0.4, str(k), size=8, color=MUTED)
    _outline(axes, left + CHOSEN_K, 0, 1, gemm_k_extent)
    _label(axes, left + K / 2, -1.3, f"B: {gemm_k_extent} × {K}", weight="bold")
    _label(
        axes, left + K / 2, gemm_k_extent + 0.7, "column k is filter k\nas it lies in memory", size=9.5, color=MUTED,
        va="top",
    )  # fmt: skip
    left += K + 3.0
    _label(axes, left - 1.5, gemm_k_extent / 2, "=", size=15)
    for gemm_m in range(gemm_m_extent):
        for k in range(K):
            hit = (gemm_m, k) == (chosen_m, CHOSEN_K)
            _box(axes, left + k, top + gemm_m, 1, 1, face=VERMILION if hit else "none", line=0.5)
            _number(axes, left + k, top + gemm_m, gemm_m * K + k, color="white" if hit else INK)
    _label(axes, left + K / 2, top - 1.3, f"C: {gemm_m_extent} × {K}", weight="bold")
    _label(
        axes, left + K / 2, top + gemm_m_extent + 0.7, "is y\nas it lies in memory", size=9.5, color=MUTED, va="top"
    )
    _frame(axes, (-1.7, left + K + 0.6), (gemm_k_extent + 2.4, -2.0))
    return figure


def memory():
    """Bytes of the input and of A written out, for each layer; implicit GEMM needs no more than the input."""
    names = [n for ladder in ("conv2d", "conv3d") for n in problems.timed_presets(ladder)]
    figure, axes = charts.new_figure(9.6, 1.5 + 0.52 * len(names))
    for place, name in enumerate(names):
        layer = problems.preset(name)
        x_mb = 4e-6 * np.prod(layer.input_shape)
        u_mb = 4e-6 * np.prod(layer.output_shape) / layer.K * layer.reduction
        for y, size, colour, what in (
            (place - 0.19, x_mb, GREEN, "x, all that implicit GEMM reads"),
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
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    figure.legend(loc="outside upper left", ncols=2, frameon=False, fontsize=10)
    return figure


def walk():
    """A strip of gemm_k in tiles, and the pixels that a block of rows reads in some of them."""
    t_extent, r_extent, s_extent, tiles_per_tap = 2, 3, 3, 2
    per_t = r_extent * s_extent * tiles_per_tap
    shown = (0, 1, 2, r_extent * tiles_per_tap, per_t)
    figure, axes_all = charts.new_figure(9.6, 5.0, rows=2, gridspec_kw={"height_ratios": [1, 1.5]})
    strip, below = axes_all
    tile_count = t_extent * per_t
    for tile in range(tile_count):
        t, r, s = tile // per_t, tile // (s_extent * tiles_per_tap) % r_extent, tile // tiles_per_tap % s_extent
        _box(strip, tile, 0, 1, 1, face=BLUE if tile in shown else (SKY, YELLOW)[tile // tiles_per_tap % 2],
             alpha=1 if tile in shown else 0.45, line=0.5)  # fmt: skip
        _label(strip, tile + 0.5, 0.5, str(tile), size=7.5, color="white" if tile in shown else INK)
        if tile % tiles_per_tap == 0:
            _label(strip, tile + tiles_per_tap / 2, -0.5, f"s = {s}", size=7.5)
        if tile % (s_extent * tiles_per_tap) == 0:
            _bracket(strip, tile, s_extent * tiles_per_tap, -1.0, f"r = {r}")
        if tile % per_t == 0:
            _bracket(strip, tile, per_t, -2.3, f"t = {t}")
    _label(
        strip, tile_count / 2, 1.6,
        f"gemm_k runs right, a tile is BLOCK_K wide; C = {tiles_per_tap} × BLOCK_K, {tiles_per_tap} tiles per tap",
        size=9.5, color=MUTED,
    )  # fmt: skip
    _frame(strip, (-0.3, tile_count + 0.3), (2.1, -3.5), equal=False)
    size, pad = 5, 1
    deltas = ("start", "c moves: + BLOCK_K", "s moves", "r moves", "t moves")
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
                _box(below, left + pad + w, pad + h, 1, 1, face=face, alpha=0.55, line=0.5)
        middle = left + pad + size / 2
        _label(below, middle, -0.9, f"tile {tile}: {delta}", size=9.5, weight="bold")
        _label(
            below, middle, size + 2 * pad + 0.8,
            f"t, r, s = {t}, {r}, {s}\nchannels from {'0' if c == 0 else 'BLOCK_K'}", size=9, va="top",
        )  # fmt: skip
    _label(
        below, 2.5 * (size + 2 * pad + 1.5) - 0.75, size + 2 * pad + 3.4,
        f"x: {size} × {size} pixels, padding 1, filter {r_extent} × {s_extent}. Blue: read by the rows of one image. "
        "Orange: outside, count as zero",
        size=9.5, color=MUTED,
    )  # fmt: skip
    _frame(below, (-0.6, 5 * (size + 2 * pad + 1.5) - 0.6), (size + 2 * pad + 4, -1.6))
    return figure


def masks():
    """Which taps of a 3 x 3 filter lie inside, as a mask of rows and a mask of columns, for four outputs."""
    height, width, extent, pad = 5, 6, 3, 1
    figure, axes_row = charts.new_figure(9.6, 4.4, columns=4)
    for axes, (p, q, where) in zip(
        axes_row, ((0, 0, "a corner"), (0, 2, "an edge"), (2, 2, "inside"), (4, 5, "the last")), strict=True
    ):
        rows = [0 <= p - pad + r < height for r in range(extent)]
        columns = [0 <= q - pad + s < width for s in range(extent)]
        for h in range(-pad, height + pad):
            for w in range(-pad, width + pad):
                outside = not (0 <= h < height and 0 <= w < width)
                _box(axes, w, h, 1, 1, face=GRID if outside else "none", alpha=0.6, line=0.5)
        for r in range(extent):
            for s in range(extent):
                valid = rows[r] and columns[s]
                _box(axes, q - pad + s, p - pad + r, 1, 1, face=GREEN if valid else VERMILION, alpha=0.65, line=0.5)
                _label(axes, q - pad + s + 0.5, p - pad + r + 0.5, "x" if valid else "0", size=8.5)
        _outline(axes, q - pad, p - pad, extent, extent)
        axes.set_title(f"{where}: p = {p}, q = {q}", fontsize=10.5, fontweight="bold")
        for place, (letter, bits) in enumerate((("r", rows), ("s", columns))):
            y = height + pad + 0.9 + 1.5 * place
            axes.text(0.6, y + 0.5, f"mask_{letter}", fontsize=9.5, ha="right", va="center")
            for bit in range(extent):  # bit 0 on the right, as in a binary number
                on = bits[bit]
                x = 1.0 + extent - 1 - bit
                _box(axes, x, y, 1, 1, face=GREEN if on else VERMILION, alpha=0.65, line=0.5)
                _label(axes, x + 0.5, y + 0.5, str(int(on)), size=9.5)
            value = sum(1 << bit for bit in range(extent) if bits[bit])
            axes.text(1.3 + extent, y + 0.5, f"= {value}", fontsize=9.5, va="center")
        _frame(axes, (-pad - 1.0, width + pad + 0.3), (height + pad + 4.1, -pad - 0.3))
    figure.text(
        0.5, 0.02,
        "Bit r is 1 if row h = p - 1 + r exists, bit s if column w = q - 1 + s does (bit 0 on the right). "
        "A tap counts if both bits are 1.",
        ha="center", fontsize=9.5, color=MUTED,
    )  # fmt: skip
    figure.get_layout_engine().set(rect=(0, 0.06, 1, 0.94))
    return figure


def _pixel(axes, x, y, first, channels, colour):
    """One pixel: its channels side by side, numbered by their places in memory, and a stronger frame."""
    for c in range(channels):
        _box(axes, x + c, y, 1, 1, face=colour, alpha=0.6, line=0.3)
        _number(axes, x + c, y, first + c)
    _box(axes, x, y, channels, 1, line=1.1)


def _number(axes, x, y, number, color=INK):
    _label(axes, x + 0.5, y + 0.52, str(number), size=7.5, color=color)


def _outline(axes, x, y, width, height):
    axes.add_patch(Rectangle((x, y), width, height, facecolor="none", edgecolor=VERMILION, linewidth=2.2, zorder=3))


def _bracket(axes, x, width, y, text):
    ends = x + 0.1, x + width - 0.1
    axes.plot([ends[0], *ends, ends[1]], [y, y - 0.25, y - 0.25, y], color=MUTED, linewidth=1)
    _label(axes, x + width / 2, y - 0.65, text, size=9)


def _box(axes, x, y, width, height, face="none", alpha=1.0, line=1.0):
    colour = "none" if face == "none" else to_rgba(face, alpha)
    axes.add_patch(
        Rectangle((x, y), width, height, facecolor=colour, edgecolor=INK if line > 1 else MUTED, linewidth=line)
    )


def _label(axes, x, y, text, size=11, color=INK, weight="normal", va="center"):
    axes.text(x, y, text, ha="center", va=va, fontsize=size, color=color, fontweight=weight)


def _frame(axes, x_range, y_range, equal=True):
    axes.set_xlim(*x_range)
    axes.set_ylim(*y_range)
    if equal:
        axes.set_aspect("equal")
    axes.axis("off")
