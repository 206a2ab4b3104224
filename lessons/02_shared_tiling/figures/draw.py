"""The pictures of lesson 02: tiles along k, a missing barrier, halo, explicit unroll."""

from importlib import import_module

from common.report import canvas
from common.report.canvas import BLUE, GREEN, INK, MUTED, ORANGE, SKY, VERMILION, YELLOW
from common.report.cells import arrow, box, frame, grid, label, outline, span, titled

conv2d_shared_tile = import_module("lessons.02_shared_tiling.conv2d_shared_tile")


def tiles():
    """A, B and C in blocks of TILE: one block of C, and the pair of tiles that moves along k."""
    across, k_tiles, row, column, now = 4, 5, 1, 2, 1
    left, top = k_tiles + 2.4, k_tiles + 1.2  # C lies right of A and below B
    ages = [(SKY, 0.35)] * now + [(BLUE, 1)] + [(YELLOW, 0.5)] * (k_tiles - now - 1)
    figure, axes = canvas.new_figure(9.6, 6.6)
    grid(axes, 0, top, across, k_tiles, lambda i, k: ages[k] if i == row else "none", line=1)
    grid(axes, left, 0, k_tiles, across, lambda k, j: ages[k] if j == column else "none", line=1)
    grid(axes, left, top, across, across, lambda i, j: (GREEN, 0.8) if (i, j) == (row, column) else "none", line=1)
    for x, y, text in (
        (now, top + row, "a_tile"), (left + column, now, "b_tile"), (left + column, top + row, "block"),
    ):  # fmt: skip
        label(axes, x + 0.5, y + 0.5, text, size=9, color="white", weight="bold")
    label(axes, k_tiles / 2, top + across + 0.45, "A[M, K]", weight="bold")
    label(axes, left + across / 2, -0.4, "B[K, N]", weight="bold")
    label(axes, left + across / 2, top + across + 0.45, "C[M, N]", weight="bold")
    arrow(axes, (now + 0.2, top - 0.35), (now + 2.4, top - 0.35))
    label(axes, now + 1.3, top - 0.7, "k0 grows", size=9.5)
    arrow(axes, (left + across + 0.3, now + 0.2), (left + across + 0.3, now + 2.4))
    label(axes, left + across + 0.45, now + 1.3, "k0 grows", size=9.5, ha="left")
    for place, (age, text) in enumerate(((now, "now in shared memory"), (0, "done"), (-1, "still to come"))):
        y = 2 + 0.55 * place
        colour, alpha = ages[age]
        box(axes, 0, y, 0.4, 0.4, face=colour, alpha=alpha, line=0.6)
        label(axes, 0.55, y + 0.2, text, size=9.5, ha="left")
    frame(axes, (-0.4, left + across + 2), (top + across + 0.8, -0.8))
    return figure


def barrier():
    """Two warps of a block in time, with the first barrier and without it."""
    slow = [(0, 5.5, SKY, "stage, delayed"), (5.5, 7, GREEN, "multiply")]
    early = [(0, 3, SKY, "stage"), (3, 5.5, VERMILION, "multiplies with old values"), (5.5, 7, GREEN, "multiply")]
    waits = [(0, 3, SKY, "stage"), (3, 5.5, "none", "wait"), (5.5, 7, GREEN, "multiply")]
    figure, both = canvas.new_figure(9.6, 4.4, rows=2)
    for axes, fast, title in (
        (both[0], early, "without the barrier: warp 0 reads what warp 1 has not written yet"),
        (both[1], waits, "with cuda.syncthreads(): nobody passes before everybody has arrived"),
    ):
        for y, spans, name in ((0, fast, "warp 0"), (1.25, slow, "warp 1")):
            label(axes, -0.75, y + 0.5, name, size=10, weight="bold")
            for start, stop, colour, what in spans:
                span(axes, start, y, stop - start, colour, what)
        titled(axes, title, loc="left")
        frame(axes, (-1.4, 7.4), (3.0, -0.3), equal=False)
        axes.annotate("", (7.4, 2.68), (6.3, 2.68), arrowprops={"arrowstyle": "->", "color": MUTED})
        label(axes, 6.2, 2.68, "time", size=9, color=MUTED, ha="right")
    both[1].plot([5.5, 5.5], [-0.2, 2.45], color=INK, linewidth=3)
    label(both[1], 5.55, 2.68, "barrier", size=9.5)
    return figure


def halo():
    """Which thread loads which pixel of the patch, and how much of it is halo."""
    tile_h, tile_w, taps = conv2d_shared_tile.TILE_H, conv2d_shared_tile.TILE_W, 5
    patch_h, patch_w, threads = tile_h + taps - 1, tile_w + taps - 1, tile_h * tile_w
    colours = (SKY, ORANGE, GREEN, YELLOW)

    def loader(h, w):
        """Its number, where there is room for it."""
        i = h * patch_w + w
        return str(i % threads) if w in (0, patch_w - 1) or i % threads == 0 else ""

    figure, (left, right) = canvas.new_figure(9.6, 5.8, columns=2)
    grid(left, 0, 0, patch_h, patch_w, lambda h, w: colours[(h * patch_w + w) // threads], loader, 5.5, 0.7, 0.3)
    grid(
        right, 0, 0, patch_h, patch_w, lambda h, w: BLUE if h < tile_h and w < tile_w else ORANGE, None, 9, 0.35, 0.3
    )
    for ty, tx in ((0, 0), (9, 7)):
        outline(right, tx, ty, taps, taps)
        box(right, tx, ty, 1, 1, face=VERMILION)
        right.text(
            tx + 0.1, ty + taps + 0.7, f"window of thread x = {tx}, y = {ty}", fontsize=8.5, va="center",
            bbox={"facecolor": canvas.PAPER, "edgecolor": "none", "pad": 1.5},
        )  # fmt: skip
    last = (patch_h * patch_w - 1) % threads
    for axes, title, note in (
        (left, "which thread loads which pixel", f"blue: round 1, threads 0 to {threads - 1}\n"
         f"orange: round 2, threads 0 to {last}; the others wait\n"),
        (right, "what the block needs", f"blue: {tile_h} × {tile_w}, as many pixels as outputs; orange: the halo\n"
         "an output is drawn at the first pixel of its window\n"),
    ):  # fmt: skip
        titled(axes, title)
        label(axes, patch_w / 2, patch_h + 1.6, note, size=9.5)
        frame(axes, (-0.3, patch_w + 0.3), (patch_h + 3.1, -0.3))
    return figure


def unroll():
    """A small image written out: one window becomes one column of U, and F @ U is the convolution."""
    height, width, r_extent, s_extent, filters = 4, 5, 2, 2, 3
    q_extent = width - s_extent + 1
    taps, columns, (p, q) = r_extent * s_extent, (height - r_extent + 1) * q_extent, (1, 2)
    column = p * q_extent + q

    def pixel(gemm_k, gemm_n):
        (r, s), (p, q) = divmod(gemm_k, s_extent), divmod(gemm_n, q_extent)
        return str((p + r) * width + q + s)

    figure, axes = canvas.new_figure(9.6, 4.9)
    grid(
        axes, 0, 0, height, width, lambda h, w: SKY if p <= h < p + r_extent and q <= w < q + s_extent else "none",
        lambda h, w: str(h * width + w),
    )  # fmt: skip
    label(axes, width / 2, -0.55, f"x: one image, {height} × {width}", weight="bold")
    left, below = 8.5, taps + 1.9
    grid(axes, left, 0, taps, columns, lambda _, gemm_n: SKY if gemm_n == column else "none", pixel)
    for gemm_k in range(taps):
        label(axes, left - 0.15, gemm_k + 0.5, f"tap {divmod(gemm_k, s_extent)}", size=9, color=MUTED, ha="right")
    label(axes, left + columns / 2, -0.55, f"U: {taps} taps × {columns} output pixels", weight="bold")
    grid(axes, left - taps - 2.4, below, filters, taps, lambda k, _: ORANGE if k == 1 else "none", alpha=0.6)
    grid(axes, left, below, filters, columns, lambda k, j: VERMILION if (k, j) == (1, column) else "none")
    label(axes, left - taps / 2 - 2.4, below - 0.5, f"F: {filters} filters × {taps} taps", weight="bold")
    label(axes, left, below - 0.5, f"y = F @ U: {filters} maps × {columns} pixels", weight="bold", ha="left")
    arrow(axes, (left + column + 0.5, taps + 0.05), (left + column + 0.5, below + 0.95), colour=VERMILION)
    arrow(axes, (left - 2.2, below + 1.5), (left + column - 0.05, below + 1.5), colour=VERMILION)
    label(
        axes, (left + columns) / 2, below + filters + 0.9,
        f"The image holds {height * width} floats, U holds {taps * columns}: a pixel is stored up to {taps} times. "
        "The numbers are pixels of x.", size=10, color=MUTED,
    )  # fmt: skip
    frame(axes, (-0.4, left + columns + 0.4), (below + filters + 1.4, -1.1))
    return figure


PICTURES = tiles, barrier, halo, unroll  # each under its function's name
