"""The pictures of lesson 08: one set of products summed three ways, which taps an element of dx meets, the classes of
a stride of 2, sixteen products for a patch of dx and for nine taps, wgrad's product with its sum in parts, tiles in
equal shares, and the network."""

from importlib import import_module
from pathlib import Path

import numpy as np
from matplotlib.patches import Rectangle

from common.catalog import problems
from common.report import canvas
from common.report.canvas import GREEN, INK, MUTED, ORANGE, PURPLE, SKY, VERMILION, YELLOW
from common.report.cells import box, frame, label

# The example of section 2: one axis, stride 1, no padding
WIDTH, TAPS = 6, 3
OUTPUTS = WIDTH - TAPS + 1
TAP_COLOURS = (SKY, ORANGE, GREEN)
# Layers of 3 x 3 taps, padding 1
EXTENT, PAD = 7, 1
CLASS_COLOURS = {(1, 1): YELLOW, (1, 0): ORANGE, (0, 1): SKY, (0, 0): GREEN}
LONG = "wgrad-resnet50-conv2"
NETWORK = import_module("lessons.08_training.network.shape").MNIST
PARTS = 4
MINIMAL = import_module("lessons.08_training.dgrad_minimal_filtering")
STREAM_K = import_module("lessons.08_training.wgrad_stream_k")
TILE_STEPS, PLACES = (8, 8, 8, 6, 6, 4), 7  # iterations of six tiles, and places for blocks
TILE_COLOURS = (SKY, ORANGE, GREEN, PURPLE, YELLOW, VERMILION)


def draw(folder: Path) -> list[Path]:
    """Write every picture into ``folder``; returns the PNG files."""
    return canvas.save_all(
        folder, sums, meeting, classes, fewer_products, nine_from_four, long_sum, equal_shares, network
    )


def sums():
    """Every product of a convolution along one axis, in three copies: summed by rows, by columns, by diagonals."""
    figure, panels = canvas.new_figure(9.6, 2.9, columns=3)
    chosen = (
        (lambda p, w: p == 1, "y[1]: along a row", "x[w] · filt[w − p]"),
        (lambda p, w: w == 3, "dx[3]: down a column", "dy[p] · filt[w − p]"),
        (lambda p, w: w - p == 1, "dfilt[1]: along a diagonal", "dy[p] · x[w]"),
    )
    for axes, (wanted, title, product) in zip(panels, chosen, strict=True):
        for p in range(OUTPUTS):
            for w in range(WIDTH):
                tap = w - p
                inside = 0 <= tap < TAPS
                hit = inside and wanted(p, w)
                face = TAP_COLOURS[tap] if inside else "none"
                box(axes, w, p, 1, 1, face=face, alpha=0.9 if hit else 0.22, line=1.6 if hit else 0.4)
                if inside:
                    label(axes, w + 0.5, p + 0.52, f"r={tap}", size=7.5, color=INK if hit else MUTED)
            label(axes, -0.55, p + 0.5, f"p={p}", size=8, color=MUTED)
        for w in range(WIDTH):
            label(axes, w + 0.5, -0.4, f"w={w}", size=8, color=MUTED)
        label(axes, WIDTH / 2, -1.35, title, size=10.5, weight="bold")
        label(axes, WIDTH / 2, OUTPUTS + 0.6, f"sums {product}", size=9.5, color=MUTED)
        frame(axes, (-1.2, WIDTH + 0.3), (OUTPUTS + 1.1, -1.9))
    return figure


def taps_met(h: int, w: int, stride: int) -> list[tuple[int, int, int, int]]:
    """(p, q, r, s) of every output that read pixel (h, w), and of the tap by which it did; edges left out."""
    found = []
    for r in range(TAPS):
        for s in range(TAPS):
            p, rest_h = divmod(h + PAD - r, stride)
            q, rest_w = divmod(w + PAD - s, stride)
            if rest_h == rest_w == 0:
                found.append((p, q, r, s))
    return found


def meeting():
    """One element of dx, and the elements of dy that it meets: at a stride of 1, and four times at one of 2."""
    figure, panels = canvas.new_figure(9.6, 2.75, columns=5)
    cases = ((3, 3, 1), (4, 4, 2), (3, 4, 2), (4, 3, 2), (3, 3, 2))
    for axes, (h, w, stride) in zip(panels, cases, strict=True):
        met = taps_met(h, w, stride)
        for row in range(EXTENT):
            for column in range(EXTENT):
                box(axes, column, row, 1, 1, line=0.3)
        for p in range(-1, EXTENT):
            for q in range(-1, EXTENT):
                row, column = p * stride - PAD + 1, q * stride - PAD + 1  # the pixel under the window's middle tap
                if 0 <= row < EXTENT and 0 <= column < EXTENT:
                    tap = next(((r, s) for P, Q, r, s in met if (p, q) == (P, Q)), None)
                    face = GREEN if tap else SKY
                    box(axes, column + 0.08, row + 0.08, 0.84, 0.84, face=face, alpha=0.85 if tap else 0.18, line=0.4)
                    if tap:
                        label(axes, column + 0.5, row + 0.53, f"{tap[0]},{tap[1]}", size=7)
        axes.add_patch(Rectangle((w, h), 1, 1, facecolor="none", edgecolor=VERMILION, linewidth=2.2, zorder=3))
        label(axes, EXTENT / 2, -0.75, f"stride {stride}, ({h}, {w})", size=9, weight="bold")
        label(axes, EXTENT / 2, EXTENT + 0.75, f"{len(met)} tap{'s' * (len(met) > 1)}", size=9, color=MUTED)
        frame(axes, (-0.3, EXTENT + 0.3), (EXTENT + 1.4, -1.4))
    return figure


def classes():
    """dx at a stride of 2, coloured by class, and each class with the taps of the filter that it meets."""
    figure, (left, right) = canvas.new_figure(9.6, 3.1, columns=2, gridspec_kw={"width_ratios": [1, 2.4]})
    for h in range(EXTENT + 1):
        for w in range(EXTENT + 1):
            face = CLASS_COLOURS[(h + PAD) % 2, (w + PAD) % 2]
            box(left, w, h, 1, 1, face=face, alpha=0.55, line=0.4)
            label(left, w + 0.5, h + 0.53, str(len(taps_met(h, w, 2))), size=8)
    label(left, (EXTENT + 1) / 2, -0.7, "dx: taps that each element meets", size=9.5, weight="bold")
    frame(left, (-0.3, EXTENT + 1.3), (EXTENT + 1.6, -1.3))
    x = 0.0
    for (b_h, b_w), face in CLASS_COLOURS.items():
        label(right, x + TAPS / 2, -0.7, f"rests {b_h}, {b_w}", size=9.5, weight="bold")
        rows, columns = range(b_h, TAPS, 2), range(b_w, TAPS, 2)
        for r in range(TAPS):
            for s in range(TAPS):
                met = r in rows and s in columns
                box(right, x + s, r, 1, 1, face=face if met else "none", alpha=0.6, line=1.2 if met else 0.4)
                label(right, x + s + 0.5, r + 0.53, f"{r},{s}", size=7.5, color=INK if met else MUTED)
        label(right, x + TAPS / 2, TAPS + 0.65,
               f"{len(rows)} × {len(columns)} taps,\nGEMM_K = {len(rows) * len(columns)} K",
               size=9, color=MUTED, va="top")  # fmt: skip
        x += TAPS + 1.1
    label(right, (x - 1.1) / 2, TAPS + 3.0, "four dense problems, each a quarter of dx", size=9.5, color=MUTED)
    frame(right, (-0.4, x - 0.7), (TAPS + 3.4, -1.3))
    return figure


def fewer_products():
    """From a window of dy to a patch of dx: sums along both axes, sixteen products, and sums again."""
    side, patch, warps = MINIMAL.WINDOW, MINIMAL.PATCH, MINIMAL.THREADS // 32
    names = ("a", "b", "c", "d")
    rows = ("d0 − d2", "d1 + d2", "d2 − d1", "d3 − d1")
    figure, axes = canvas.new_figure(9.6, 2.6)
    apart = side + 3.2
    for panel in range(4):
        x = panel * apart
        count = patch if panel == 3 else side
        shift = (side - count) / 2
        for r in range(count):
            for s in range(count):
                number = r * side + s
                face = (SKY, ORANGE, GREEN, PURPLE)[r] if panel == 1 else YELLOW if panel == 2 else MUTED
                even = r % 2
                strength = 0.5 if panel == 1 else (0.75 if even else 0.3) if panel == 2 else 0.2
                box(axes, x + shift + s, shift + r, 1, 1, face=face, alpha=strength, line=0.5)
                if panel == 1:
                    label(axes, x + s + 0.5, r + 0.53, names[r] + names[s], size=7.5)
                if panel == 2:
                    label(axes, x + s + 0.5, r + 0.53, str(number), size=7.5)
    for r, text in enumerate(rows):
        label(axes, apart - 1.35, r + 0.53, text, size=7.5, color=MUTED)
    titles = ("window of dy", "sums, both ways", f"{MINIMAL.PRODUCTS} products", "patch of dx")
    below = (
        f"{side} × {side}, one filter", "the row's letter,\nthen the column's",
        f"summed over filters;\n{warps} warps have {side} each", f"{patch} × {patch}, one channel",
    )  # fmt: skip
    for panel, (title, text) in enumerate(zip(titles, below, strict=True)):
        label(axes, panel * apart + side / 2, -0.75, title, size=9.5, weight="bold")
        label(axes, panel * apart + side / 2, side + 0.5, text, size=8.5, color=MUTED, va="top")
    for panel, text in ((1, "× filter"), (2, "a + b + c\nb − c + d")):
        label(axes, panel * apart + side + 1.55, side / 2, text, size=8.5)
    frame(axes, (-0.4, 3 * apart + side + 0.4), (side + 2.2, -1.3))
    return figure


def nine_from_four():
    """A patch of dy and a window of x become sixteen values each; their products, over all patches, nine taps."""
    side, patch, taps = MINIMAL.WINDOW, MINIMAL.PATCH, MINIMAL.TAPS
    figure, axes = canvas.new_figure(9.6, 3.9)
    apart, lower = side + 2.6, side + 1.6
    panels = (
        (0, 0, patch, "patch of dy", MUTED, ""),
        (1, 0, side, "of_products.T, both ways", ORANGE, ""),
        (0, lower, side, "window of x", MUTED, ""),
        (1, lower, side, "of_inputs, both ways", SKY, ""),
        (2, lower / 2, side, "16 products", YELLOW, "summed over all patches\nof all images"),
        (3, lower / 2, taps, "taps of dfilt", GREEN, "of_taps.T, both ways"),
    )
    for column, top, count, title, face, below in panels:
        x, shift = column * apart, (side - count) / 2
        for r in range(count):
            for s in range(count):
                strength = 0.2 if face == MUTED else 0.5
                box(axes, x + shift + s, top + shift + r, 1, 1, face=face, alpha=strength, line=0.5)
                if count == side and column:
                    label(axes, x + s + 0.5, top + r + 0.53, str(r * side + s), size=7.5)
        label(axes, x + side / 2, top + shift - 0.45, title, size=9, weight="bold")
        label(axes, x + side / 2, top + side + 0.4, below, size=8.5, color=MUTED, va="top")
    for top in (0, lower):
        _arrow(axes, side + 0.3, top + side / 2, apart - 0.3, top + side / 2)
    for top, end in ((0, -0.6), (lower, 0.6)):
        _arrow(axes, apart + side + 0.3, top + side / 2, 2 * apart - 0.3, lower / 2 + side / 2 + end)
    _arrow(axes, 2 * apart + side + 0.3, lower / 2 + side / 2, 3 * apart + 0.2, lower / 2 + side / 2)
    label(axes, 2 * apart - 1.3, lower / 2 + side / 2, "×", size=14)
    frame(axes, (-0.4, 3 * apart + side + 0.4), (lower + side + 0.6, -1.0))
    return figure


def long_sum():
    """wgrad's product, dy transposed times the windows of x: a small result of long sums, cut into parts."""
    layer = problems.preset(LONG)
    figure, axes = canvas.new_figure(9.6, 3.4)
    small, wide, length = 1.3, 3.0, 11.0
    colours = (SKY, ORANGE, GREEN, PURPLE)
    for part in range(PARTS):
        share = length / PARTS
        box(axes, part * share, 2.0, share, small, face=colours[part], alpha=0.45, line=0.6)
        box(axes, length + 1.4, part * share * 0.48, wide, share * 0.48, face=colours[part], alpha=0.45, line=0.6)
        x0 = length + wide + 3.0 + part * 0.28
        box(axes, x0, 2.0 - part * 0.28, wide, small, face="#ffffff", line=0.6)
        box(axes, x0, 2.0 - part * 0.28, wide, small, face=colours[part], alpha=0.45, line=0.6)
    box(axes, 0, 2.0, length, small, line=1.2)
    box(axes, length + 1.4, 0, wide, length * 0.48, line=1.2)
    label(axes, length + 0.7, 2.65, "@", size=14)
    label(axes, length + wide + 2.2, 2.65, "=", size=14)
    label(axes, length / 2, 1.6, f"A: dy, {layer.K} × {layer.reduction:,}", size=9.5, weight="bold")
    label(axes, length / 2, 3.8, "GEMM_K = N × O × P × Q: all pixels of all images", size=9.5, color=MUTED)
    label(axes, length + 1.4 + wide / 2, -0.45, "B: windows of x", size=9.5, weight="bold")
    label(axes, length + 1.4 + wide / 2, length * 0.48 + 0.5, f"{layer.reduction:,} × {layer.R * layer.S * layer.C}",
           size=9.5, color=MUTED)  # fmt: skip
    last = length + wide + 3.0
    label(
        axes, last + wide / 2 + 0.4, 0.6, f"dfilt: {layer.K} × {layer.R * layer.S * layer.C}", size=9.5, weight="bold"
    )
    label(axes, last + wide / 2 + 0.4, 3.8, f"{PARTS} parts of each sum,\nadded up in one order", size=9.5,
           color=MUTED, va="top")  # fmt: skip
    frame(axes, (-0.3, last + wide + 1.3), (length * 0.48 + 1.0, -0.9))
    return figure


def equal_shares():
    """Six tiles on seven places: a block for each tile, and blocks that cut the row of all iterations evenly."""
    work, first_segments = STREAM_K.cut([(steps, 0, 0, 0) for steps in TILE_STEPS], PLACES)
    whole = [[(tile, tile, steps)] for tile, steps in enumerate(TILE_STEPS)] + [[]]
    equal = [
        [(int(np.searchsorted(first_segments, row[0], "right")) - 1, row[0], row[-1]) for row in block if row[-1]]
        for block in work
    ]
    longest = max(TILE_STEPS)
    figure, panels = canvas.new_figure(9.6, 3.3, columns=2)
    for axes, blocks, title in zip(
        panels, (whole, equal), ("a block for each tile", "a block for each place"), strict=True
    ):
        end = max(sum(segment[-1] for segment in segments) for segments in blocks)
        for place, segments in enumerate(blocks):
            x = 0
            for tile, number, steps in segments:
                box(axes, x, place, steps, 0.8, face=TILE_COLOURS[tile], alpha=0.55, line=1.2)
                for step in range(1, steps):
                    axes.plot((x + step, x + step), (place + 0.65, place + 0.8), color=MUTED, linewidth=0.6)
                name = f"tile {tile}" if blocks is whole else f"{number}"
                label(axes, x + steps / 2, place + 0.36, name, size=8.5)
                x += steps
            label(axes, -0.75, place + 0.4, f"place {place}", size=8.5, color=MUTED)
            if x < end:
                label(axes, (x + end) / 2, place + 0.42, "idle", size=8.5, color=MUTED)
        axes.plot((end, end), (-0.2, PLACES), color=INK, linewidth=1.2, linestyle=":")
        label(axes, longest / 2, -0.75, f"{title}: done after {end} iterations", size=10, weight="bold")
        frame(axes, (-1.5, longest + 0.4), (PLACES + 0.5, -1.2))
        axes.set_aspect("auto")
    label(panels[1], longest / 2, PLACES + 0.25, "numbers: segments, colours: their tiles", size=8.5, color=MUTED)
    return figure


def network():
    """The network's arrays from left to right, what makes each of the one before, and the gradients going back."""
    first, second = NETWORK.first, NETWORK.second
    arrays = (
        ("digit", first.H, first.C, MUTED), ("y1", first.OUT, first.K, SKY), ("pooled", second.H, second.C, SKY),
        ("y2", second.OUT, second.K, ORANGE), ("pooled", second.WINDOWS, second.K, ORANGE),
        ("hidden", 1, NETWORK.HIDDEN, GREEN), ("logits", 1, NETWORK.CLASSES, PURPLE),
    )  # fmt: skip
    convolution = f"conv {NETWORK.TAPS} × {NETWORK.TAPS},\nbias, ReLU"
    both, winner = "dgrad,\nwgrad", "to the\nwinner"
    ways = (
        (convolution, "wgrad"), (f"pool {first.POOL} × {first.POOL}", winner), (convolution, both),
        (f"pool {second.POOL} × {second.POOL}", winner), ("dense, bias,\nReLU", both), ("dense,\nbias", both),
    )  # fmt: skip
    figure, axes = canvas.new_figure(9.6, 1.9)
    step = 4.1
    for place, (name, extent, channels, face) in enumerate(arrays):
        x, side = place * step, 0.5 + 1.3 * extent / first.H
        box(axes, x - side / 2, -side / 2, side, side, face=face, alpha=0.55, line=1.2)
        label(axes, x, -1.55, name, size=9.5, weight="bold")
        label(
            axes, x, 1.45, f"{extent} × {extent} × {channels}" if extent > 1 else str(channels), size=8.5, color=MUTED
        )
    for place, (forward, backward) in enumerate(ways):
        middle = (place + 0.5) * step
        for y, colour, text, ends in ((-0.35, INK, forward, (-0.7, 0.7)), (0.35, VERMILION, backward, (0.7, -0.7))):
            axes.annotate(
                "", (middle + ends[1], y), (middle + ends[0], y), arrowprops={"arrowstyle": "->", "color": colour}
            )
            label(axes, middle, y * 3.0, text, size=7.5, color=colour)
    axes.annotate("", (6 * step + 2.2, 0), (6 * step + 0.6, 0), arrowprops={"arrowstyle": "<->", "color": MUTED})
    label(axes, 6 * step + 2.8, 0, "loss", size=9.5)
    frame(axes, (-1.2, 6 * step + 3.6), (1.9, -2.0))
    return figure


def _arrow(axes, x0, y0, x1, y1):
    axes.annotate("", (x1, y1), (x0, y0), arrowprops={"arrowstyle": "->", "color": MUTED})
