"""The pictures of lesson 07: descriptors, swizzles, corners."""

from importlib import import_module
from pathlib import Path

import numpy as np

from common.report import canvas
from common.report.canvas import BLUE, GREEN, GRID, INK, MUTED, ORANGE, PURPLE, SKY, VERMILION, YELLOW
from common.report.cells import box, frame, label, outline, titled
from common.trace.hopper import layouts
from lessons.toolkit.maps import Maps

wgmma = import_module("lessons.07_hopper.hgemm_wgmma")

SHADES = (SKY, ORANGE, GREEN, YELLOW, PURPLE, BLUE, VERMILION, GRID)
FIELDS = (("address", 0, 14), ("leading", 16, 14), ("stride", 32, 14), ("base", 49, 3), ("swizzle", 62, 2))
PIECES = 8  # of 16 bytes in a row of 128


def draw(folder: Path) -> list[Path]:
    """Write every picture into ``folder``; returns the PNG files."""
    return canvas.save_all(folder, descriptor, swizzle, corners)


def _operands():
    """The descriptors of the first tiles of hgemm_wgmma."""
    a = layouts.encoded(0, 0, wgmma.EIGHT_ROWS)
    return int(a), int(layouts.encoded(wgmma.BYTES * wgmma.A_SIZE, wgmma.BYTES * wgmma.PANEL, wgmma.EIGHT_ROWS))


def descriptor():
    """The 64 bits of both descriptors of hgemm_wgmma, field by field."""
    figure, axes = canvas.new_figure(9.6, 3.3)
    for i, (operand, one) in enumerate(zip("AB", _operands(), strict=True)):
        top = i * 2.6
        box(axes, 0, top, 64, 1, line=1.4)
        for field, (name, low, width) in enumerate(FIELDS):
            left = 64 - low - width
            box(axes, left, top, width, 1, face=SHADES[field], alpha=0.5, line=1.0)
            in_bytes, value = name in ("address", "leading", "stride"), one >> low & (1 << width) - 1
            text = f"{value:#x}" if in_bytes else str(value)
            label(axes, left + width / 2, top + 0.5, text, size=10)
            said = f"{name}: {value << 4:,} bytes" if in_bytes else name
            if name == "leading" and operand == "A":
                said = f"{name}: not used"
            label(axes, left + width / 2, top + 1.35, said, size=8.5, color=MUTED)
            if i == 0:
                label(axes, left + width - 0.5, top - 0.4, str(low), size=7.5, color=MUTED)
                if width > 3:
                    label(axes, left + 0.5, top - 0.4, str(low + width - 1), size=7.5, color=MUTED)
        label(axes, -2.2, top + 0.5, operand, size=13, weight="bold")
    note = "Bits 63 to 0. Addresses and offsets are in units of 16 bytes. Swizzle 1: rows of 128 bytes."
    label(axes, 32, 4.9, note, size=9.5, color=MUTED)
    frame(axes, (-4, 65), (5.3, -0.9), equal=False)
    return figure


def swizzle():
    """A tile of A in the array and in shared memory, what its second wgmma reads, and the panels of a tile of B."""
    figure, (left, middle, right) = canvas.new_figure(9.6, 4.6, columns=3, gridspec_kw={"width_ratios": [1, 1, 1.15]})
    rows, unit = 16, layouts.UNIT // wgmma.BYTES
    first = layouts.Descriptor(0, 0, layouts.ATOM, layouts.ROW)
    places = layouts.operand(rows, wgmma.ROW, wgmma.BYTES, first)[:, ::unit] // unit
    a, b = _operands()
    second = layouts.Descriptor.of(a + wgmma.A_STEP)
    operand = layouts.operand(rows, wgmma.MMA_K, wgmma.BYTES, second)
    read = set(operand.ravel() // unit)
    for row in range(rows):
        for piece in range(PIECES):
            place = int(places[row, piece])
            line, slot = divmod(place, PIECES)
            for axes, x, y in ((left, piece, row), (middle, slot, line)):
                mine = place in read
                box(axes, x, y, 1, 1, face=VERMILION if mine else SHADES[piece], alpha=0.9 if mine else 0.3, line=0.5)
                label(axes, x + 0.5, y + 0.5, str(piece), size=8, color="white" if mine else INK)
    for axes, title in ((left, "the box in A"), (middle, "in shared memory")):
        titled(axes, title)
        for row in (0, 8):
            outline(axes, 0, row, PIECES, 8, INK, 1.4)
        frame(axes, (-1.6, PIECES + 0.3), (rows + 1.6, -0.3), equal=False)
    for row in (0, 8):
        label(middle, -0.9, row + 0.3, f"{row * layouts.ROW:,}", size=8, color=MUTED)
        label(left, -0.9, row + 0.5, f"row {row}", size=8, color=MUTED)
    label(left, PIECES / 2, rows + 0.9, "a cell: 16 bytes, 8 values of k", size=8.5, color=MUTED)
    label(middle, PIECES / 2, rows + 0.9, "red: k = 16 to 31", size=8.5, color=MUTED)
    _panels(right, b)
    return figure


def _panels(axes, b):
    """A tile of B in its panels: eight rows of k in each cell; red what its second wgmma reads."""
    unit = layouts.ATOM // wgmma.BYTES
    operand = layouts.operand(wgmma.MMA_K, wgmma.BLOCK_N, wgmma.BYTES, layouts.Descriptor.of(b + wgmma.B_STEP))
    read = set(operand.ravel() // unit)
    first = layouts.Descriptor.of(b).start // layouts.ATOM
    groups = wgmma.BLOCK_K // 8
    for panel in range(wgmma.PARTS):
        for group in range(groups):
            mine = first + panel * groups + group in read
            box(axes, panel, group, 0.9, 1, face=VERMILION if mine else SHADES[panel], alpha=0.9 if mine else 0.3)
            address = (first + panel * groups + group) * layouts.ATOM
            label(axes, panel + 0.45, group + 0.5, f"{address:,}", size=7.5, color="white" if mine else INK)
        label(axes, panel + 0.45, -0.3, f"n = {panel * wgmma.ROW}", size=8, color=MUTED)
    label(axes, 2, groups + 0.35, "a cell: 8 k × 64 n, 1,024 bytes from there", size=8.5, color=MUTED)
    label(axes, 2, groups + 0.85, "down: stride; right: leading", size=8.5, color=MUTED)
    titled(axes, "the tile of B")
    frame(axes, (-0.2, wgmma.PARTS + 0.1), (groups + 1.1, -0.7), equal=False)


def corners():
    """Base pixels of a small image by an im2col map's corners, and what one tap of all of them brings."""
    H, W, taps, stride, pad = 6, 7, 3, 2, 1
    channels = 16  # the fewest that the engine takes
    x = np.zeros((1, 1, H, W, channels), np.float16)
    x[0, 0, :, :, 0] = 1 + np.arange(H * W).reshape(H, W)
    upper = pad - (taps - 1)
    base_h, base_w = (list(range(-pad, extent + upper, stride)) for extent in (H, W))
    one = Maps().im2col(
        x, (0, -pad, -pad), (0, upper, upper), channels, len(base_h) * len(base_w), (1, stride, stride)
    )
    tap = (0, 2, 0)
    pixels = zip(*layouts.walked(x.shape, one, one.pixels, (0, 0, -pad, -pad), tap), strict=True)
    got = [int(x[n, d, h, w, 0]) if 0 <= h < H and 0 <= w < W else 0 for n, d, h, w in pixels]
    figure, (left, right) = canvas.new_figure(9.6, 4.4, columns=2, gridspec_kw={"width_ratios": [1.5, 1]})
    for h in range(-pad, H + pad):
        for w in range(-pad, W + pad):
            inside = 0 <= h < H and 0 <= w < W
            based = h in base_h and w in base_w
            tapped = h - tap[1] in base_h and w - tap[2] in base_w
            face = ORANGE if tapped else SKY if based else "none"
            box(left, w, h, 1, 1, face=face, alpha=0.6, line=1.2 if inside else 0.4)
            text = str(int(x[0, 0, h, w, 0])) if inside else "0"
            label(left, w + 0.5, h + 0.5, text, size=9, color=INK if inside else MUTED)
            if based and tapped:
                outline(left, w + 0.12, h + 0.12, 0.76, 0.76, BLUE, 2.0)
    outline(left, -pad, -pad, W + upper + pad, H + upper + pad, VERMILION, 2.0)
    label(left, -pad, -pad - 0.25, f"lower = {-pad}", size=9, color=VERMILION, ha="left")
    label(
        left, W / 2, H + pad + 0.35, f"red frame: base pixels; upper, counted from the far end, is {upper}", size=9,
        color=VERMILION,
    )  # fmt: skip
    left.set_title(f"an image of {H} × {W}, {taps} × {taps} taps, stride {stride}, padding {pad}", fontsize=10)
    frame(left, (-pad - 0.3, W + pad + 0.3), (H + pad + 0.8, -pad - 0.6))
    for row, value in enumerate(got):
        box(right, 0, row, 2, 0.9, face=ORANGE, alpha=0.6 if value else 0.2)
        label(right, 1, row + 0.45, str(value), size=9)
        h, w = base_h[row // len(base_w)], base_w[row % len(base_w)]
        label(right, -0.2, row + 0.45, f"base ({h}, {w})", size=9, color=MUTED, ha="right")
    right.set_title(f"rows of the tile at tap r = {tap[1]}, s = {tap[2]}", fontsize=10)
    note = "blue: base pixels; orange: what the tap brings"
    label(right, 0, len(got) + 0.5, note, size=9, color=MUTED)
    frame(right, (-2.8, 2.8), (len(got) + 1, -0.4), equal=False)
    return figure
