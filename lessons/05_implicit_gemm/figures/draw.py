"""The pictures of lesson 05: the worked example, masks."""

from common.report import canvas
from common.report.canvas import GREEN, GRID, MUTED, ORANGE, SKY, VERMILION, YELLOW
from common.report.cells import box, frame, grid, label, outline, titled

# The worked example: NHWC = {1, 4, 4, 3}, KRSC = {4, 2, 2, 3}, and the output that is followed through it.
H = W = 4
C, K, R, S = 3, 4, 2, 2
P, Q = H - R + 1, W - S + 1
CHOSEN_P, CHOSEN_Q, CHOSEN_K = 1, 2, 2
TAPS = (SKY, ORANGE, GREEN, YELLOW)  # a colour for each (r, s)


def tensors():
    """x, filt and y of the worked example, row by row as they lie in memory; the numbers are places in it."""
    figure, axes = canvas.new_figure(9.6, 2.3)

    def inside(h, w):
        r, s = h - CHOSEN_P, w // C - CHOSEN_Q
        return TAPS[r * S + s] if 0 <= r < R and 0 <= s < S else "none"

    _pixels(axes, 0, 0, H, W, C, inside)
    outline(axes, CHOSEN_Q * C, CHOSEN_P, S * C, R, zorder=3)
    label(axes, W * C / 2, -0.75, f"x[n, h, w, c]: 1 × {H} × {W} × {C}", weight="bold")
    label(axes, W * C / 2, H + 0.7, f"{C} neighbours are the\nchannels of one pixel", size=9, color=MUTED, va="top")
    left = W * C + 2.8
    _pixels(axes, left, 0, K, R * S, C, lambda _, column: TAPS[column // C])
    outline(axes, left, CHOSEN_K, R * S * C, 1, zorder=3)
    for k in range(K):
        label(axes, left - 0.15, k + 0.5, f"k = {k}", size=8.5, color=MUTED, ha="right")
    middle, text = left + R * S * C / 2, "a filter in a row, a colour\nfor each tap (r, s)"
    label(axes, middle, -0.75, f"filt[k, r, s, c]: {K} × {R} × {S} × {C}", weight="bold")
    label(axes, middle, K + 0.7, text, size=9, color=MUTED, va="top")
    left += R * S * C + 1.4
    chosen = CHOSEN_Q * K + CHOSEN_K
    _pixels(axes, left, 0, P, Q, K, lambda p, column: (VERMILION, 1) if (p, column) == (CHOSEN_P, chosen) else "none")
    label(axes, left + Q * K / 2, -0.75, f"y[n, p, q, k]: 1 × {P} × {Q} × {K}", weight="bold")
    text = f"followed through this page:\np = {CHOSEN_P}, q = {CHOSEN_Q}, k = {CHOSEN_K}"
    label(axes, left + Q * K / 2, P + 0.7, text, size=9, color=VERMILION, va="top")
    frame(axes, (-0.4, left + Q * K + 0.4), (6.2, -1.3))
    return figure


def _pixels(axes, x, y, rows, columns, channels, face):
    """Rows of pixels: their channels side by side, numbered by their places in memory, and a stronger frame."""
    width = columns * channels
    grid(axes, x, y, rows, width, face, lambda i, j: str(i * width + j), size=7.5, alpha=0.6, line=0.3)
    for i in range(rows):
        for j in range(columns):
            box(axes, x + j * channels, y + i, channels, 1, line=1.1)


def matrices():
    """The worked example as A @ B = C; the numbers are places in x, filt and y."""
    rows, depth = P * Q, R * S * C  # GEMM_M and GEMM_K
    chosen_m = CHOSEN_P * Q + CHOSEN_Q
    figure, axes = canvas.new_figure(9.6, 5.3)
    top = (depth - rows) / 2

    def place_in_x(gemm_m, gemm_k):
        (p, q), (r, s, c) = divmod(gemm_m, Q), (gemm_k // (S * C), gemm_k // C % S, gemm_k % C)
        return str(((p + r) * W + q + s) * C + c)

    grid(axes, 0, top, rows, depth, lambda m, k: (TAPS[k // C], 0.75 if m == chosen_m else 0.25), place_in_x, 7.5)
    for gemm_m in range(rows):
        label(axes, -0.25, top + gemm_m + 0.5, f"{divmod(gemm_m, Q)}", size=8, color=MUTED, ha="right")
    for tap in range(R * S):
        label(axes, tap * C + C / 2, top - 0.4, f"tap {divmod(tap, S)}", size=8, color=MUTED)
    label(axes, -0.25, top - 0.4, "(p, q)", size=8, color=MUTED, ha="right")
    outline(axes, 0, top + chosen_m, depth, 1, zorder=3)
    label(axes, depth / 2, top - 1.3, f"A: GEMM_M × GEMM_K = {rows} × {depth}", weight="bold")
    text = f"{rows * depth} elements, but x has only {H * W * C}: A is never written"
    label(axes, depth / 2, top + rows + 0.7, text, size=9.5, color=MUTED)
    left = depth + 3.0
    label(axes, left - 1.5, depth / 2, "@", size=15)
    grid(
        axes, left, 0, depth, K, lambda gemm_k, k: (TAPS[gemm_k // C], 0.75 if k == CHOSEN_K else 0.25),
        lambda gemm_k, k: str(k * depth + gemm_k), size=7.5,
    )  # fmt: skip
    for k in range(K):
        label(axes, left + k + 0.5, -0.4, str(k), size=8, color=MUTED)
    outline(axes, left + CHOSEN_K, 0, 1, depth, zorder=3)
    label(axes, left + K / 2, -1.3, f"B: {depth} × {K}", weight="bold")
    label(
        axes, left + K / 2, depth + 0.7, "column k is filter k\nas it lies in memory", size=9.5, color=MUTED, va="top"
    )
    left += K + 3.0
    label(axes, left - 1.5, depth / 2, "=", size=15)
    grid(
        axes, left, top, rows, K, lambda m, k: VERMILION if (m, k) == (chosen_m, CHOSEN_K) else "none",
        lambda m, k: str(m * K + k), size=7.5,
    )  # fmt: skip
    label(axes, left + K / 2, top - 1.3, f"C: {rows} × {K}", weight="bold")
    label(axes, left + K / 2, top + rows + 0.7, "is y\nas it lies in memory", size=9.5, color=MUTED, va="top")
    frame(axes, (-1.7, left + K + 0.6), (depth + 2.4, -2.0))
    return figure


def masks():
    """Four outputs at a padded border: their taps, the mask of each as the step codes it, and the test of one tap."""
    height, width, extent, pad = 5, 6, 3, 1
    tap_r, tap_s = 0, 2
    outputs = ((0, 0, "a corner"), (0, 2, "an edge"), (2, 2, "inside"), (4, 5, "the last"))
    figure, axes_row = canvas.new_figure(9.6, 4.6, columns=len(outputs))
    for axes, (p, q, where) in zip(axes_row, outputs, strict=True):
        rows = [not 0 <= p - pad + r < height for r in range(extent)]
        columns = [not 0 <= q - pad + s < width for s in range(extent)]
        grid(axes, -pad, -pad, height + 2 * pad, width + 2 * pad, lambda *_: GRID, alpha=0.6, line=0.5)
        grid(axes, 0, 0, height, width, lambda *_: canvas.PAPER, line=0.5)
        for r in range(extent):
            for s in range(extent):
                out = rows[r] or columns[s]
                box(axes, q - pad + s, p - pad + r, 1, 1, face=VERMILION if out else GREEN, alpha=0.65, line=0.5)
                label(axes, q - pad + s + 0.5, p - pad + r + 0.5, "0" if out else "x", size=8.5)
        outline(axes, q - pad + tap_s, p - pad + tap_r, 1, 1, zorder=3)
        titled(axes, f"{where}: p = {p}, q = {q}", size=10.5)
        # t, then r, then s; drawn with bit 0 on the right, as in a binary number
        mask = [False, *rows, *columns]
        entry = [True, *(r == tap_r for r in range(extent)), *(s == tap_s for s in range(extent))]
        both = [a and b for a, b in zip(mask, entry, strict=True)]
        left, below = 1.4 - pad, height + pad + 1.2
        for x, letter in ((extent / 2, "s"), (3 * extent / 2, "r"), (2 * extent + 0.5, "t")):
            label(axes, left + x, below, letter, size=9, color=MUTED)
        for place, (name, bits, face) in enumerate(
            (("mask", mask, VERMILION), ("tap", entry, SKY), ("and", both, VERMILION))
        ):
            y = below + 0.5 + 1.25 * place
            label(axes, left - 0.3, y + 0.5, name, size=9.5, ha="right")
            for i, on in enumerate(reversed(bits)):
                box(axes, left + i, y, 1, 1, face=face if on else "none", alpha=0.65, line=0.5)
                label(axes, left + i + 0.5, y + 0.5, str(int(on)), size=9)
        verdict = "not 0: outside" if any(both) else "0: copy x"
        label(axes, left + 3.5, height + pad + 5.95, verdict, size=9.5, weight="bold")
        frame(axes, (-pad - 1.4, width + pad + 0.6), (height + pad + 6.8, -pad - 0.3))
    note = (
        f"A bit of the mask is 1 where that t, r or s falls outside. A tap, here ({tap_r}, {tap_s}), has one bit for "
        "each of its three.\nBit 0 stands on the right."
    )
    canvas.footnote(figure, note, 0.09, y=0.02)
    return figure


PICTURES = tensors, matrices, masks  # each under its function's name
