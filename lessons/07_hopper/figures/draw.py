"""The pictures of lesson 07: swizzles, corners."""

from importlib import import_module

from common.report import canvas
from common.report.canvas import BLUE, GREEN, GRID, INK, MUTED, ORANGE, PURPLE, SKY, VERMILION, YELLOW
from common.report.cells import box, frame, label, outline, titled
from common.trace.hopper import tiles
from common.trace.hopper import wgmma as layouts

wgmma = import_module("lessons.07_hopper.hgemm_wgmma")

SHADES = (SKY, ORANGE, GREEN, YELLOW, PURPLE, BLUE, VERMILION, GRID)
PIECES = 8  # of 16 bytes in a row of 128


def swizzle():
    """A tile of A in the array and in shared memory, what its second wgmma reads, and the panels of a tile of B."""
    figure, (left, middle, right) = canvas.new_figure(9.6, 4.6, columns=3, gridspec_kw={"width_ratios": [1, 1, 1.15]})
    rows, unit = 16, tiles.UNIT // wgmma.BYTES
    first = layouts.Descriptor(0, 0, layouts.ATOM, layouts.ROW)
    places = layouts.operand(rows, wgmma.ROW, wgmma.BYTES, first)[:, ::unit] // unit
    second = layouts.Descriptor.of(int(layouts.encoded(0, 0, wgmma.EIGHT_ROWS)) + wgmma.A_STEP)
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
    _panels(right)
    return figure


def _panels(axes):
    """A tile of B in its panels: eight rows of k in each cell; red what its second wgmma reads."""
    b = int(layouts.encoded(wgmma.BYTES * wgmma.A_SIZE, wgmma.BYTES * wgmma.PANEL, wgmma.EIGHT_ROWS))
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
    H, W, taps, stride, pad, r, s = 6, 7, 3, 2, 1, 2, 0
    upper = pad - (taps - 1)
    base_h, base_w = (list(range(-pad, extent + upper, stride)) for extent in (H, W))
    figure, axes = canvas.new_figure(6.4, 5.4)
    for h in range(-pad, H + pad):
        for w in range(-pad, W + pad):
            inside = 0 <= h < H and 0 <= w < W
            based = h in base_h and w in base_w
            tapped = h - r in base_h and w - s in base_w
            face = ORANGE if tapped else SKY if based else "none"
            box(axes, w, h, 1, 1, face=face, alpha=0.6, line=1.2 if inside else 0.4)
            text, colour = (str(h * W + w + 1), INK) if inside else ("0", MUTED)
            label(axes, w + 0.5, h + 0.5, text, size=9, color=colour)
            if based and tapped:
                outline(axes, w + 0.12, h + 0.12, 0.76, 0.76, BLUE, 2.0)
    outline(axes, -pad, -pad, W + upper + pad, H + upper + pad, VERMILION, 2.0)
    label(axes, -pad, -pad - 0.25, f"lower = {-pad}", size=9, color=VERMILION, ha="left")
    framed = f"red frame: base pixels; upper, counted from the far end, is {upper}"
    label(axes, W / 2, H + pad + 0.35, framed, size=9, color=VERMILION)
    note = f"blue: base pixels; orange: what tap r = {r}, s = {s} brings"
    label(axes, W / 2, H + pad + 0.8, note, size=9, color=MUTED)
    axes.set_title(f"an image of {H} × {W}, {taps} × {taps} taps, stride {stride}, padding {pad}", fontsize=10)
    frame(axes, (-pad - 0.3, W + pad + 0.3), (H + pad + 1.1, -pad - 0.6))
    return figure


PICTURES = swizzle, corners  # each under its function's name
