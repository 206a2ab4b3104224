"""The pictures of lesson 08: one set of products summed three ways, which taps an element of dx meets, the classes of
a stride of 2, sixteen products for a patch of dx, wgrad's product with its sum in parts, tiles in equal shares, and
the network."""

from importlib import import_module
from pathlib import Path

import numpy as np

from common.catalog import problems
from common.report import canvas
from common.report.canvas import GREEN, INK, MUTED, ORANGE, PURPLE, SKY, VERMILION, YELLOW
from common.report.cells import box, frame, label, outline

# The example of section 2: one axis, stride 1, no padding
WIDTH, TAPS = 6, 3
OUTPUTS = WIDTH - TAPS + 1
# Layers of 3 x 3 taps, padding 1
EXTENT, PAD = 7, 1
CLASS_COLOURS = {(1, 1): YELLOW, (1, 0): ORANGE, (0, 1): SKY, (0, 0): GREEN}
LONG = "wgrad-resnet50-conv2"
NETWORK = import_module("lessons.08_training.network.shape").MNIST
MINIMAL = import_module("lessons.08_training.dgrad_minimal_filtering")
STREAM_K = import_module("lessons.08_training.wgrad_stream_k")
TILE_STEPS, PLACES = (8, 8, 8, 6, 6, 4), 7  # iterations of six tiles, and places for blocks
COLOURS = (SKY, ORANGE, GREEN, PURPLE, YELLOW, VERMILION)


def draw(folder: Path) -> list[Path]:
    """Write every picture into ``folder``; returns the PNG files."""
    return canvas.save_all(folder, sums, meeting, classes, fewer_products, long_sum, equal_shares, network)


def grid(axes, left, top, rows, columns, look):
    """Cells of 1 x 1: ``look(row, column)`` is a face, how strong it is, the lines' width, a text and its colour."""
    for row in range(rows):
        for column in range(columns):
            face, alpha, line, text, ink = look(row, column)
            box(axes, left + column, top + row, 1, 1, face=face, alpha=alpha, line=line)
            label(axes, left + column + 0.5, top + row + 0.53, text, size=7.5, color=ink)


def sums():
    """Every product of a convolution along one axis, in three copies: summed by rows, by columns, by diagonals."""
    figure, panels = canvas.new_figure(9.6, 2.9, columns=3)
    chosen = (
        (lambda p, w: p == 1, "y[1]: along a row", "x[w] · filt[w − p]"),
        (lambda p, w: w == 3, "dx[3]: down a column", "dy[p] · filt[w − p]"),
        (lambda p, w: w - p == 1, "dfilt[1]: along a diagonal", "dy[p] · x[w]"),
    )
    for axes, (wanted, title, product) in zip(panels, chosen, strict=True):

        def look(p, w, wanted=wanted):
            if not 0 <= w - p < TAPS:
                return "none", 1, 0.4, "", INK
            strength = (0.9, 1.6) if wanted(p, w) else (0.22, 0.4)
            return COLOURS[w - p], *strength, f"r={w - p}", INK if wanted(p, w) else MUTED

        grid(axes, 0, 0, OUTPUTS, WIDTH, look)
        for p in range(OUTPUTS):
            label(axes, -0.55, p + 0.5, f"p={p}", size=8, color=MUTED)
        for w in range(WIDTH):
            label(axes, w + 0.5, -0.4, f"w={w}", size=8, color=MUTED)
        label(axes, WIDTH / 2, -1.35, title, size=10.5, weight="bold")
        label(axes, WIDTH / 2, OUTPUTS + 0.6, f"sums {product}", size=9.5, color=MUTED)
        frame(axes, (-1.2, WIDTH + 0.3), (OUTPUTS + 1.1, -1.9))
    return figure


def taps_met(h: int, w: int, stride: int) -> dict[tuple[int, int], str]:
    """By (p, q) of every output that read pixel (h, w), the tap by which it did; edges left out."""
    found = {}
    for r, s in np.ndindex(TAPS, TAPS):
        p, rest_h = divmod(h + PAD - r, stride)
        q, rest_w = divmod(w + PAD - s, stride)
        if rest_h == rest_w == 0:
            found[p, q] = f"{r},{s}"
    return found


def meeting():
    """One element of dx, and the elements of dy that it meets: at a stride of 1, and four times at one of 2."""
    figure, panels = canvas.new_figure(9.6, 2.75, columns=5)
    cases = ((3, 3, 1), (4, 4, 2), (3, 4, 2), (4, 3, 2), (3, 3, 2))
    for axes, (h, w, stride) in zip(panels, cases, strict=True):
        met = taps_met(h, w, stride)
        grid(axes, 0, 0, EXTENT, EXTENT, lambda _row, _column: ("none", 1, 0.3, "", INK))
        for p, q in np.ndindex(EXTENT, EXTENT):
            row, column = p * stride - PAD + 1, q * stride - PAD + 1  # the pixel under the window's middle tap
            if row < EXTENT and column < EXTENT:
                face, strength = (GREEN, 0.85) if (p, q) in met else (SKY, 0.18)
                box(axes, column + 0.08, row + 0.08, 0.84, 0.84, face=face, alpha=strength, line=0.4)
                label(axes, column + 0.5, row + 0.53, met.get((p, q), ""), size=7)
        outline(axes, w, h, 1, 1, zorder=3)
        label(axes, EXTENT / 2, -0.75, f"stride {stride}, ({h}, {w})", size=9, weight="bold")
        label(axes, EXTENT / 2, EXTENT + 0.75, f"{len(met)} tap{'s' * (len(met) > 1)}", size=9, color=MUTED)
        frame(axes, (-0.3, EXTENT + 0.3), (EXTENT + 1.4, -1.4))
    return figure


def classes():
    """dx at a stride of 2, coloured by class, and each class with the taps of the filter that it meets."""
    figure, (left, right) = canvas.new_figure(9.6, 3.1, columns=2, gridspec_kw={"width_ratios": [1, 2.4]})

    def pixel(h, w):
        return CLASS_COLOURS[(h + PAD) % 2, (w + PAD) % 2], 0.55, 0.4, str(len(taps_met(h, w, 2))), INK

    grid(left, 0, 0, EXTENT + 1, EXTENT + 1, pixel)
    label(left, (EXTENT + 1) / 2, -0.7, "dx: taps that each element meets", size=9.5, weight="bold")
    frame(left, (-0.3, EXTENT + 1.3), (EXTENT + 1.6, -1.3))
    x = 0.0
    for (b_h, b_w), face in CLASS_COLOURS.items():
        rows, columns = range(b_h, TAPS, 2), range(b_w, TAPS, 2)

        def tap(r, s, rows=rows, columns=columns, face=face):
            met = r in rows and s in columns
            return (face, 0.6, 1.2, f"{r},{s}", INK) if met else ("none", 1, 0.4, f"{r},{s}", MUTED)

        grid(right, x, 0, TAPS, TAPS, tap)
        label(right, x + TAPS / 2, -0.7, f"rests {b_h}, {b_w}", size=9.5, weight="bold")
        sizes = f"{len(rows)} × {len(columns)} taps,\nGEMM_K = {len(rows) * len(columns)} K"
        label(right, x + TAPS / 2, TAPS + 0.65, sizes, size=9, color=MUTED, va="top")
        x += TAPS + 1.1
    label(right, (x - 1.1) / 2, TAPS + 3.0, "four dense problems, each a quarter of dx", size=9.5, color=MUTED)
    frame(right, (-0.4, x - 0.7), (TAPS + 3.4, -1.3))
    return figure


def fewer_products():
    """From a window of dy to a patch of dx: sums along both axes, sixteen products, and sums again."""
    side, patch, warps = MINIMAL.WINDOW, MINIMAL.PATCH, MINIMAL.THREADS // 32
    figure, axes = canvas.new_figure(9.6, 2.6)
    apart, names = side + 3.2, "abcd"
    panels = (
        ("window of dy", f"{side} × {side}, one filter", side, lambda _r, _s: (MUTED, 0.2, 0.5, "", INK)),
        ("sums, both ways", "the row's letter,\nthen the column's", side,
         lambda r, s: (COLOURS[r], 0.5, 0.5, names[r] + names[s], INK)),
        (f"{MINIMAL.PRODUCTS} products", f"summed over filters;\n{warps} warps have {side} each", side,
         lambda r, s: (YELLOW, 0.75 if r % 2 else 0.3, 0.5, str(r * side + s), INK)),
        ("patch of dx", f"{patch} × {patch}, one channel", patch, lambda _r, _s: (MUTED, 0.2, 0.5, "", INK)),
    )  # fmt: skip
    for panel, (title, text, count, look) in enumerate(panels):
        shift = (side - count) / 2
        grid(axes, panel * apart + shift, shift, count, count, look)
        label(axes, panel * apart + side / 2, -0.75, title, size=9.5, weight="bold")
        label(axes, panel * apart + side / 2, side + 0.5, text, size=8.5, color=MUTED, va="top")
    for r, text in enumerate(("d0 − d2", "d1 + d2", "d2 − d1", "d3 − d1")):
        label(axes, apart - 1.35, r + 0.53, text, size=7.5, color=MUTED)
    for panel, text in ((1, "× filter"), (2, "a + b + c\nb − c + d")):
        label(axes, panel * apart + side + 1.55, side / 2, text, size=8.5)
    frame(axes, (-0.4, 3 * apart + side + 0.4), (side + 2.2, -1.3))
    return figure


def long_sum():
    """wgrad's product, dy transposed times the windows of x: a small result of long sums, cut into parts."""
    layer = problems.preset(LONG)
    figure, axes = canvas.new_figure(9.6, 3.4)
    small, wide, length, parts = 1.3, 3.0, 11.0, 4
    height, right, last = length * 0.48, length + 1.4, length + wide + 3.0
    for part, face in enumerate(COLOURS[:parts]):
        share, x, y = 1 / parts, last + part * 0.28, 2.0 - part * 0.28
        box(axes, part * share * length, 2.0, share * length, small, face=face, alpha=0.45, line=0.6)
        box(axes, right, part * share * height, wide, share * height, face=face, alpha=0.45, line=0.6)
        box(axes, x, y, wide, small, face="#ffffff", line=0.6)
        box(axes, x, y, wide, small, face=face, alpha=0.45, line=0.6)
    box(axes, 0, 2.0, length, small, line=1.2)
    box(axes, right, 0, wide, height, line=1.2)
    columns = layer.R * layer.S * layer.C
    for x, text in ((length + 0.7, "@"), (length + wide + 2.2, "=")):
        label(axes, x, 2.65, text, size=14)
    for x, y, text in (
        (length / 2, 1.6, f"A: dy, {layer.K} × {layer.reduction:,}"), (right + wide / 2, -0.45, "B: windows of x"),
        (last + wide / 2 + 0.4, 0.6, f"dfilt: {layer.K} × {columns}"),
    ):  # fmt: skip
        label(axes, x, y, text, size=9.5, weight="bold")
    for x, y, text in (
        (length / 2, 3.8, "GEMM_K = N × O × P × Q: all pixels of all images"),
        (right + wide / 2, height + 0.5, f"{layer.reduction:,} × {columns}"),
        (last + wide / 2 + 0.4, 4.1, f"{parts} parts of each sum,\nadded up in one order"),
    ):
        label(axes, x, y, text, size=9.5, color=MUTED)
    frame(axes, (-0.3, last + wide + 1.3), (height + 1.0, -0.9))
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
                box(axes, x, place, steps, 0.8, face=COLOURS[tile], alpha=0.55, line=1.2)
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
    convolution = f"conv {first.TAPS} × {first.TAPS},\nbias, ReLU"
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
