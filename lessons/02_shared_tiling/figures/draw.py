"""The pictures of lesson 02: tiles along k, a missing barrier, halo, explicit unroll, thin tiles, occupancy."""

import math
from importlib import import_module
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.patches import FancyArrowPatch, Rectangle

from common.catalog import catalog, problems
from common.records import records
from common.report import canvas
from common.report.canvas import BLUE, GREEN, INK, MUTED, ORANGE, SKY, VERMILION, YELLOW
from common.report.cells import box, frame, label, titled
from common.trace import trace
from common.trace.cost import WARP

gemm_shared_tile = import_module("lessons.02_shared_tiling.gemm_shared_tile")
conv2d_shared_tile = import_module("lessons.02_shared_tiling.conv2d_shared_tile")
conv2d_unroll_gemm = import_module("lessons.02_shared_tiling.conv2d_unroll_gemm")

# What a multiprocessor of compute capability 9.0 holds at most.
SM_SHARED_BYTES, BLOCK_RESERVED_BYTES = 228 * 1024, 1024
SM_WARPS, SM_BLOCKS = 64, 32


def draw(folder: Path) -> list[Path]:
    """Write every picture into ``folder``; returns the PNG files."""
    return canvas.save_all(folder, tiles, barrier, halo, unroll, thin, occupancy, who_loads)


def tiles():
    """A, B and C in blocks of TILE: one block of C, and the pair of tiles that moves along k."""
    tile = gemm_shared_tile.TILE
    across, k_tiles, row, column, now = 4, 5, 1, 2, 1
    figure, axes = canvas.new_figure(9.6, 6.2)
    gap = 1.2
    left, top = k_tiles + 2 * gap, k_tiles + gap  # C lies right of A and below B
    for i in range(across):
        for k in range(k_tiles):
            colour, alpha = _age(k, now) if i == row else ("none", 1)
            box(axes, k, top + i, 1, 1, face=colour, alpha=alpha)
            colour, alpha = _age(k, now) if i == column else ("none", 1)
            box(axes, left + i, k, 1, 1, face=colour, alpha=alpha)
        for j in range(across):
            box(axes, left + j, top + i, 1, 1, face=GREEN if (i, j) == (row, column) else "none", alpha=0.8)
    label(axes, now + 0.5, top + row + 0.5, "a_tile", size=9, color="white", weight="bold")
    label(axes, left + column + 0.5, now + 0.5, "b_tile", size=9, color="white", weight="bold")
    label(axes, left + column + 0.5, top + row + 0.5, "block", size=9, color="white", weight="bold")
    label(axes, k_tiles / 2, top + across + 0.45, "A[M, K]", weight="bold")
    label(axes, left + across / 2, -0.4, "B[K, N]", weight="bold")
    label(axes, left + across / 2, top + across + 0.45, "C[M, N]", weight="bold")
    _arrow(axes, (now + 0.2, top - 0.35), (now + 2.4, top - 0.35))
    label(axes, now + 1.3, top - 0.7, "k0 grows", size=9.5)
    _arrow(axes, (left + across + 0.3, now + 0.2), (left + across + 0.3, now + 2.4))
    label(axes, left + across + 0.45, now + 1.3, "k0 grows", size=9.5, ha="left")
    axes.text(
        -0.2, 0.2,
        f"{tile} × {tile} threads own one block of C.\n"
        f"Each round of the loop over k0:\n"
        f"  1. each thread copies one element of A\n"
        f"      and one of B to shared memory\n"
        f"  2. barrier\n"
        f"  3. each thread does {tile} multiply-adds\n"
        f"      from shared memory\n"
        f"  4. barrier, next pair of tiles",
        va="top", fontsize=10.5, linespacing=1.5,
    )  # fmt: skip
    for place, (colour, alpha, text) in enumerate(
        ((BLUE, 1, "now in shared memory"), (SKY, 0.35, "done"), (YELLOW, 0.5, "still to come"))
    ):
        y = top + across - 2.6 + 0.55 * place
        box(axes, left + across + 0.4, y, 0.4, 0.4, face=colour, alpha=alpha, line=0.6)
        label(axes, left + across + 0.95, y + 0.2, text, size=9.5, ha="left")
    frame(axes, (-0.4, left + across + 3.6), (top + across + 0.8, -0.8))
    return figure


def _age(k, now):
    return (SKY, 0.35) if k < now else ((BLUE, 1) if k == now else (YELLOW, 0.5))


def barrier():
    """Two warps of a block in time, with the first barrier and without it."""
    figure, (without, with_) = canvas.new_figure(9.6, 4.4, rows=2)
    for axes, title, fast, slow, wall in (
        (without, "without the barrier: warp 0 reads what warp 1 has not written yet",
         [(0, 3, "stage"), (3, 7, "multiply")], [(0, 5.5, "stage, delayed"), (5.5, 7, "multiply")], None),
        (with_, "with cuda.syncthreads(): nobody passes before everybody has arrived",
         [(0, 3, "stage"), (3, 5.5, "wait"), (5.5, 7, "multiply")],
         [(0, 5.5, "stage, delayed"), (5.5, 7, "multiply")], 5.5),
    ):  # fmt: skip
        for y, spans, name in ((0, fast, "warp 0"), (1.25, slow, "warp 1")):
            label(axes, -0.75, y + 0.5, name, size=10, weight="bold")
            for start, stop, what in spans:
                wrong = wall is None and y == 0 and what == "multiply"
                for a, b, bad in ((start, min(stop, 5.5), wrong), (5.5, stop, False)):
                    if b > a and (a, b) != (5.5, 5.5) and (a >= start):
                        colour = {"stage": SKY, "wait": "none"}.get(what.split(",")[0], GREEN)
                        box(axes, a, y, b - a, 1, face=VERMILION if bad else colour, alpha=0.75, line=0.8)
                middle = (start + (5.5 if wrong else stop)) / 2
                text = "multiplies with old values" if wrong else what
                label(axes, middle, y + 0.5, text, size=9.5)
                if wrong:
                    label(axes, (5.5 + stop) / 2, y + 0.5, what, size=9.5)
        if wall is not None:
            axes.plot([wall, wall], [-0.2, 2.45], color=INK, linewidth=3)
            label(axes, wall + 0.05, 2.68, "barrier", size=9.5)
        titled(axes, title, loc="left")
        frame(axes, (-1.4, 7.4), (3.0, -0.3), equal=False)
        axes.annotate("", (7.4, 2.68), (6.3, 2.68), arrowprops={"arrowstyle": "->", "color": MUTED})
        label(axes, 6.2, 2.68, "time", size=9, color=MUTED, ha="right")
    return figure


def halo():
    """Which thread loads which pixel of the patch, and how much of it is halo."""
    tile_h, tile_w, r_extent, s_extent = conv2d_shared_tile.TILE_H, conv2d_shared_tile.TILE_W, 5, 5
    patch_h, patch_w, threads = tile_h + r_extent - 1, tile_w + s_extent - 1, tile_h * tile_w
    rounds = -(-patch_h * patch_w // threads)
    figure, (left, right) = canvas.new_figure(9.6, 5.8, columns=2)
    colours = (SKY, ORANGE, GREEN, YELLOW)
    for i in range(patch_h * patch_w):
        h, w = divmod(i, patch_w)
        box(left, w, h, 1, 1, face=colours[i // threads], alpha=0.7, line=0.3)
        if w in (0, patch_w - 1) or i % threads == 0:
            label(left, w + 0.5, h + 0.5, str(i % threads), size=5.5)
    titled(left, "which thread loads which pixel")
    last = patch_h * patch_w - (rounds - 1) * threads
    label(
        left, patch_w / 2, patch_h + 1.6,
        f"blue: round 1, threads 0 to {threads - 1}\norange: round 2, threads 0 to {last - 1}; the others wait\n",
        size=9.5,
    )  # fmt: skip
    for h in range(patch_h):
        for w in range(patch_w):
            own = h < tile_h and w < tile_w
            box(right, w, h, 1, 1, face=BLUE if own else ORANGE, alpha=0.35, line=0.3)
    for ty, tx in ((0, 0), (9, 7)):
        box(right, tx, ty, s_extent, r_extent, face="none", line=2.2, edge=VERMILION)
        box(right, tx, ty, 1, 1, face=VERMILION)
        right.text(
            tx + 0.1, ty + r_extent + 0.7, f"window of thread x = {tx}, y = {ty}", fontsize=8.5, va="center",
            bbox={"facecolor": canvas.PAPER, "edgecolor": "none", "pad": 1.5},
        )  # fmt: skip
    titled(right, "what the block needs")
    label(
        right, patch_w / 2, patch_h + 1.6,
        f"blue: {tile_h} × {tile_w}, as many pixels as outputs; orange: the halo\n"
        "an output is drawn at the first pixel of its window\n", size=9.5,
    )  # fmt: skip
    for axes in (left, right):
        frame(axes, (-0.3, patch_w + 0.3), (patch_h + 3.1, -0.3))
    return figure


def unroll():
    """A small image written out: one window becomes one column of U, and F @ U is the convolution."""
    height, width, r_extent, s_extent, filters = 4, 5, 2, 2, 3
    p_extent, q_extent = height - r_extent + 1, width - s_extent + 1
    taps, columns, chosen = r_extent * s_extent, p_extent * q_extent, (1, 2)
    column = chosen[0] * q_extent + chosen[1]
    figure, axes = canvas.new_figure(9.6, 4.9)
    cell, top = 1.0, 0.0
    for h in range(height):
        for w in range(width):
            inside = chosen[0] <= h < chosen[0] + r_extent and chosen[1] <= w < chosen[1] + s_extent
            box(axes, w, top + h, cell, cell, face=SKY if inside else "none", line=0.8)
            label(axes, w + 0.5, top + h + 0.5, str(h * width + w), size=9)
    label(axes, width / 2, -0.55, f"x: one image, {height} × {width}", weight="bold")
    u_left, u_top = 8.5, 0.0
    for gemm_k in range(taps):
        r, s = divmod(gemm_k, s_extent)
        for gemm_n in range(columns):
            p, q = divmod(gemm_n, q_extent)
            pixel = (p + r) * width + q + s
            picked = gemm_n == column
            box(axes, u_left + gemm_n, u_top + gemm_k, 1, 1, face=SKY if picked else "none", line=0.8)
            label(axes, u_left + gemm_n + 0.5, u_top + gemm_k + 0.5, str(pixel), size=9)
        label(axes, u_left - 0.15, u_top + gemm_k + 0.5, f"tap ({r}, {s})", size=9, color=MUTED, ha="right")
    label(axes, u_left + columns / 2, -0.55, f"U: {taps} taps × {columns} output pixels", weight="bold")
    y_top = u_top + taps + 1.9
    for k in range(filters):
        for gemm_k in range(taps):
            box(
                axes, u_left - taps - 2.4 + gemm_k, y_top + k, 1, 1, face=ORANGE if k == 1 else "none", alpha=0.6,
                line=0.8,
            )  # fmt: skip
        for gemm_n in range(columns):
            hit = k == 1 and gemm_n == column
            box(axes, u_left + gemm_n, y_top + k, 1, 1, face=VERMILION if hit else "none", line=0.8)
    label(axes, u_left - taps / 2 - 2.4, y_top - 0.5, f"F: {filters} filters × {taps} taps", weight="bold")
    label(axes, u_left, y_top - 0.5, f"y = F @ U: {filters} maps × {columns} pixels", weight="bold", ha="left")
    axes.annotate(
        "", (u_left + column + 0.5, u_top + taps + 0.05), (u_left + column + 0.5, y_top + 0.95),
        arrowprops={"arrowstyle": "<-", "color": VERMILION, "lw": 1.8},
    )  # fmt: skip
    _arrow(axes, (u_left - 2.2, y_top + 1.5), (u_left + column - 0.05, y_top + 1.5), colour=VERMILION)
    label(
        axes, (u_left + columns) / 2, y_top + filters + 0.9,
        f"The image holds {height * width} floats, U holds {taps * columns}: a pixel is stored up to {taps} times. "
        "The numbers are pixels of x.", size=10, color=MUTED,
    )  # fmt: skip
    frame(axes, (-0.4, u_left + columns + 0.4), (y_top + filters + 1.4, -1.1))
    return figure


def thin():
    """The part of unroll+GEMM's multiply-adds that count, per ECE408 layer."""
    tile = conv2d_unroll_gemm.TILE
    figure, axes_pair = canvas.new_figure(9.6, 2.9, rows=2, gridspec_kw={"height_ratios": [1, 1.7]})
    for axes, preset in zip(axes_pair, ("ece408-layer1", "ece408-layer2"), strict=True):
        layer = problems.preset(preset)
        taps = layer.C * layer.R * layer.S
        rows, width = -(-layer.K // tile) * tile, -(-taps // tile) * tile
        box(axes, 0, 0, width, rows, face=ORANGE, alpha=0.6, line=1)
        box(axes, 0, 0, taps, layer.K, face=BLUE, line=0.5)
        for k0 in range(0, width + 1, tile):
            axes.plot([k0, k0], [0, rows], color="white", linewidth=0.8)
        for m0 in range(0, rows + 1, tile):
            axes.plot([0, width], [m0, m0], color="white", linewidth=0.8)
        share = 100 * taps * layer.K / (rows * width)
        titled(
            axes,
            f"{preset}: F is {layer.K} × {taps}, its tiles {rows} × {width}: {share:.0f}% of the multiply-adds count",
            size=10.5, loc="left",
        )  # fmt: skip
        frame(axes, (-1, 310), (rows + 1, -1))
    note = f"A square is a tile of {tile} × {tile}. Blue: F. Orange: multiplied with zero."
    canvas.footnote(figure, note, 0.1, y=0.015)
    return figure


def occupancy():
    """Warps resident on a multiprocessor against the shared memory that a block takes."""
    figure, axes = canvas.new_figure(9.6, 4.2)
    kib = [i / 8 for i in range(1, 8 * 48 + 1)]
    for threads, colour, style in ((1024, BLUE, "-"), (256, VERMILION, "-"), (128, GREEN, "--")):
        shares = [100 * resident(threads, 1024 * size) / SM_WARPS for size in kib]
        axes.plot(kib, shares, color=colour, linewidth=2.2, linestyle=style, label=f"{threads} threads per block")
    for name, preset, place in (
        ("conv2d_shared_tile", "ece408-layer1", 0.4),
        ("gemm_shared_tile", None, 13.4),
        ("conv2d_shared_tile", "ece408-layer2", 26.4),
    ):
        kernel = records.main_kernel(records.load_code(), name, preset)
        threads, size = math.prod(kernel.block), kernel.shared_bytes
        share = 100 * kernel.occupancy.fraction
        axes.plot(size / 1024, share, "o", color=INK, markersize=8, zorder=4)
        on = f", {preset[7:]}" if preset else ""
        axes.annotate(
            f"{name}{on}: {share:.0f}%\n{threads} threads, {size:,} bytes, {kernel.registers} registers",
            (size / 1024, share), xytext=(place, 107), fontsize=8.5, ha="left",
            arrowprops={"arrowstyle": "-", "color": MUTED},
            bbox={"facecolor": canvas.PAPER, "edgecolor": "none", "pad": 1},
        )  # fmt: skip
    axes.set_ylim(0, 122)
    axes.set_yticks(range(0, 101, 20))
    axes.set_xlim(0, 48)
    axes.set_xticks(range(0, 49, 8))
    axes.set_xlabel("shared memory per block, KiB")
    axes.set_ylabel("% of 64 warps resident")
    canvas.gridded(axes)
    axes.legend(frameon=False, loc="lower left", fontsize=9.5)
    titled(
        axes, "Warps that fit a multiprocessor of compute capability 9.0; lines: if registers do not limit them",
        loc="left",
    )  # fmt: skip
    return figure


def resident(threads, shared_bytes):
    """Warps that shared memory, threads and the limit on blocks let a multiprocessor hold."""
    warps = -(-threads // 32)
    return warps * min(int(SM_SHARED_BYTES // (shared_bytes + BLOCK_RESERVED_BYTES)), SM_WARPS // warps, SM_BLOCKS)


def who_loads():
    """A patch of an image in shared memory: which warp stages which pixel, and how often each is read."""
    step, array = catalog.find("conv2d_shared_tile"), "patch"
    problem = problems.parse_shape(step.ladder, "N=1 C=1 H=70 W=70 K=1 R=5 S=5")
    (found,) = trace.results([trace.task(step, problem, block=(6, 0, 0), watched=[array])])
    events = found.main.events
    extent = max(place for event in events for place in event.places) + 1
    side = int(np.sqrt(extent))
    loader = np.zeros(extent, int)
    stored = np.zeros(extent, int)  # in which round of the loop that stages
    reads = np.zeros(extent, int)
    for event in events:
        if event.op == "write":
            stored[event.places] = stored.max() + 1 if stored.any() else 1
            loader[event.places] = np.array(event.threads) // WARP
        else:
            np.add.at(reads, event.places, 1)
    figure, (left, right) = canvas.new_figure(9.6, 5.2, columns=2)
    tile = side - problem.shape()["R"] + 1
    shades = mpl.colormaps["tab20c"]
    for place in range(extent):
        h, w = divmod(place, side)
        first = stored[place] == 1
        face = shades(loader[place] % 4 * 4 + loader[place] // 4 + (0 if first else 2))
        left.add_patch(Rectangle((w, h), 1, 1, facecolor=face, edgecolor="white", linewidth=0.6))
        label(
            left, w + 0.5, h + 0.5, str(loader[place]), size=6.5, color="white" if first else INK,
            weight="bold" if first else "normal",
        )  # fmt: skip
    left.add_patch(Rectangle((0, 0), tile, tile, facecolor="none", edgecolor=INK, linewidth=2.2))
    titled(left, "which warp stages which pixel")
    label(
        left,
        side / 2,
        side + 0.5,
        "bold white: first round; dark: second round, by warps 0 to "
        f"{loader[stored > 1].max()}\noutlined: {tile} × {tile}, one pixel for each output; the rest is halo",
        size=9,
        va="top",
    )
    image = right.imshow(reads.reshape(side, side), cmap="Blues", extent=(0, side, side, 0), vmin=0)
    figure.colorbar(image, ax=right, shrink=0.72, label="reads by the block, for each filter")
    right.add_patch(Rectangle((0, 0), tile, tile, facecolor="none", edgecolor=INK, linewidth=2.2))
    titled(right, "how often each pixel is read")
    corners = ((0, 0), (side // 2, side // 2), (side - 1, side - 1), (side - 1, 0))
    for h, w in corners:
        count = reads[h * side + w]
        label(right, w + 0.5, h + 0.5, str(count), size=8, color="white" if count > 12 else INK)
    label(
        right, side / 2, side + 0.5, f"{reads.sum():,} reads of {extent} pixels: {reads.sum() / extent:.0f} each",
        size=9, va="top",
    )  # fmt: skip
    for axis in (left, right):
        frame(axis, (-0.1, side + 0.1), (side + 2.4, -0.1))
    return figure


def _arrow(axes, start, stop, colour=INK):
    axes.add_patch(FancyArrowPatch(start, stop, arrowstyle="-|>", mutation_scale=14, color=colour, linewidth=1.4))
