"""The pictures of lesson 06: fragments, `ldmatrix`, banks and stages; traced where they can be."""

from importlib import import_module

from common.catalog import catalog, problems
from common.report import canvas
from common.report.canvas import BLUE, GREEN, GRID, INK, MUTED, ORANGE, PURPLE, SKY, VERMILION, YELLOW
from common.report.cells import box, frame, grid, label, outline, span, titled
from common.trace import trace
from common.trace.cost import BANKS, WARP

shared = import_module("lessons.06_tensor_cores.hgemm_shared")
pipelined = import_module("lessons.06_tensor_cores.hgemm_pipelined")
conv2d = import_module("lessons.06_tensor_cores.conv2d_tensor_core")

M, N, K = shared.MMA_M, shared.MMA_N, shared.MMA_K
SIDE = 8  # of the matrices that `ldmatrix` hands out
CHOSEN = 5  # the lane that is followed
SHADES = (SKY, ORANGE, GREEN, YELLOW, PURPLE, BLUE, VERMILION, GRID)


def _traced(name, shape, kept=0):
    """The trace of a step's first block at a shape, with the first requests of each access."""
    (found,) = trace.results([trace.task(catalog.find(name), problems.parse_shape("hgemm", shape), kept=kept)])
    return found.main


def _places(request):
    """The threads of a request, each with the float16 that it asks for, counted from the array's first."""
    bytes_ = enumerate(request.places, WARP * request.warp)
    return {thread: place // 2 for thread, place in bytes_ if place is not None}


def fragments():
    """Which lane of hgemm_mma holds which elements of the tiles of A, B and C: all that it reads and writes."""
    accesses = {a.array: a for a in _traced("hgemm_mma", f"M={M} N={N} K={K}", kept=8).select("global")}
    figure, axes = canvas.new_figure(9.6, 8.2)
    gap = 2.6
    corners = {"a": (0, 0, M, K), "b": (K + gap, -K - gap, K, N), "c": (K + gap, 0, M, N)}
    titles = {"a": f"A: {M} × {K}", "b": f"B: {K} × {N}", "c": f"C: {M} × {N}"}
    for array, (left, top, rows, columns) in corners.items():
        for i, request in enumerate(accesses[array].seen):
            for lane, place in _places(request).items():
                row, column = divmod(place, columns)
                mine = lane == CHOSEN
                face, alpha = (VERMILION, 1.0) if mine else (SHADES[lane // 4], 0.3)
                box(axes, left + column, top + row, 1, 1, face=face, alpha=alpha, line=0.5)
                text = f"{lane}:{i}" if mine else str(lane)
                label(axes, left + column + 0.5, top + row + 0.5, text, size=7.5, color="white" if mine else INK)
        for column in range(0, columns, SIDE):
            for row in range(0, rows, SIDE):
                outline(axes, left + column, top + row, SIDE, SIDE, INK, 1.2)
        label(axes, left + columns / 2, top - 1.3, titles[array], weight="bold")
        for column in range(columns):
            label(axes, left + column + 0.5, top - 0.45, str(column), size=7, color=MUTED)
        for row in range(rows):
            label(axes, left - 0.5, top + row + 0.5, str(row), size=7, color=MUTED)
    label(
        axes, K / 2, -K / 2 - gap - 2,
        f"Each number is the lane that holds the element.\nA colour: the four lanes of a group, lane // 4.\n"
        f"Red: lane {CHOSEN}, with the place in its fragment:\n{CHOSEN}:2 in A is a_frag[2] of lane {CHOSEN}.\n"
        f"Thick lines: matrices of {SIDE} × {SIDE}.",
        size=10,
    )  # fmt: skip
    frame(axes, (-1.2, K + gap + N + 0.4), (M + 0.4, -K - gap - 2))
    return figure


def ldmatrix():
    """One ldmatrix of A and one, transposed, of B: which lane names which row, and what a lane is given."""
    kernel = _traced("hgemm_shared", "M=128 N=128 K=64")
    reads = [a for a in kernel.accesses if (a.space, a.op) == ("shared", "read")]
    figure, axes_row = canvas.new_figure(9.6, 4.3, columns=2)
    group, member = divmod(CHOSEN, 4)
    for axes, access in zip(axes_row, reads, strict=True):
        of_a = access.array == "a_tile"
        columns = shared.BLOCK_K if of_a else shared.BLOCK_N
        for lane, place in enumerate(access.sample):
            row, column = divmod(place, columns)
            box(axes, column, row, SIDE, 1, face=SHADES[lane // SIDE], alpha=0.35, line=0.5)
            at = column - 0.3 if column == 0 else column + SIDE + 0.3
            side = "right" if column == 0 else "left"
            label(axes, at, row + 0.5, f"lane {lane}", size=8, color=MUTED, ha=side)
            for pair in range(2):
                inside = (group, 2 * member + pair) if of_a else (2 * member + pair, group)
                if row % SIDE == inside[0]:
                    box(axes, column + inside[1], row, 1, 1, face=VERMILION, line=0.5)
                    text = str(lane // SIDE * 2 + pair)
                    label(axes, column + inside[1] + 0.5, row + 0.5, text, size=8, color="white")
        titled(axes, "ldmatrix4 of a_tile" if of_a else "ldmatrix4_transposed of b_tile")
        label(axes, SIDE, -0.6, "k runs right" if of_a else "n runs right", size=9, color=MUTED)
        label(
            axes, SIDE, 2 * SIDE + 1.0, f"red: what lane {CHOSEN} is given, by its place in the fragment", size=9,
            color=MUTED,
        )  # fmt: skip
        frame(axes, (-3.4, 2 * SIDE + 3.4), (2 * SIDE + 1.7, -1.2))
    return figure


def rows_in_banks():
    """The first rows of a_tile as they lie in the banks, and the pieces that one matrix of an ldmatrix reads."""
    figure, axes_row = canvas.new_figure(9.6, 3.6, columns=2)
    banks = 4  # of a piece of 16 bytes
    pieces = BANKS // banks
    for axes, name in zip(axes_row, ("hgemm_shared", "hgemm_swizzled"), strict=True):
        kernel = _traced(name, "M=128 N=128 K=64", kept=2)  # the first warps' requests: neighbours copy neighbours
        tile = {one.op: one for one in kernel.select("shared") if one.array == "a_tile"}
        copied = {thread: at for request in tile["copy"].seen for thread, at in _places(request).items()}
        access = tile["read"]
        slots = [place // SIDE for place in access.sample[:SIDE]]
        for thread in range(SIDE * pieces):
            place = copied[thread]
            row, slot = divmod(place // SIDE, pieces)
            read = place // SIDE in slots
            crowd = sum(other % pieces == slot for other in slots)
            face = "none" if not read else GREEN if crowd == 1 else VERMILION
            box(axes, slot * banks, row, banks, 1, face=face, alpha=0.85, line=0.5)
            middle = slot * banks + banks / 2, row + 0.5
            label(axes, *middle, str(thread % pieces), size=8.5, color="white" if read else MUTED)
        for row in range(SIDE):
            label(axes, -0.4, row + 0.5, f"row {row}", size=8.5, color=MUTED, ha="right")
        titled(axes, f"{name}: {access.moved // access.requests} wavefronts")
        label(axes, BANKS / 2, -0.5, "bank 0 … 31", size=8.5, color=MUTED)
        frame(axes, (-4.4, BANKS + 0.4), (SIDE + 0.3, -1.0), equal=False)
    note = (
        "A cell: 16 bytes, eight values, four banks. Its number: which piece of the row was copied there. Coloured: "
        "what the first\nof an ldmatrix's four matrices reads, piece 0 of eight rows. Above: wavefronts of all four."
    )
    canvas.footnote(figure, note, 0.1, size=9)
    return figure


def stages():
    """hgemm_pipelined in time: which pair of tiles is copied to which stage, and which is multiplied."""
    count, shown = pipelined.STAGES, 5
    figure, axes = canvas.new_figure(9.6, 3.4)
    long, before = 4.0, 2.2
    spans = []
    for pair in range(shown + count - 1):
        ready = (pair - 0.25) * long if pair else 0.0  # the barrier in the last k of the pair before
        start = pair * 0.5 - before if pair < count - 1 else (pair - count + 1) * long
        y = pair % count * 1.35
        if start < shown * long:
            spans.append((start, y, min(ready, shown * long) - start, SKY, f"copy {pair}"))
        if pair < shown:
            spans.append((ready, y, (pair + 0.75) * long - ready, GREEN, f"read {pair}"))
    bottom = count * 1.35
    for at in (0.0, *((pair + 0.75) * long for pair in range(shown))):
        axes.plot([at, at], [-0.15, bottom - 0.2], color=INK, linewidth=2.5)
    for x, y, width, colour, text in spans:
        span(axes, x, y, width, colour, text, card=True)
    for stage in range(count):
        label(axes, -before - 0.2, stage * 1.35 + 0.5, f"stage {stage}", size=9.5, ha="right")
    label(
        axes, (shown * long - before) / 2, bottom + 0.35,
        "time runs right; thick lines: wait_group and the barrier; read: by ldmatrix, a step before it is multiplied",
        size=9.5, color=MUTED,
    )  # fmt: skip
    frame(axes, (-before - 2.2, shown * long + 0.2), (bottom + 0.8, -0.4), equal=False)
    return figure


def image_rows():
    """Which output rows a fragment of TF32 in one image row serves, on layer 2."""
    layer = problems.preset("ece408-layer2")
    tile = conv2d.plan(layer.C, layer.H, layer.W, layer.K, layer.R, layer.S)
    outputs, taps = tile["ROWS"], tile["PART_R"]
    lines = outputs + taps - 1
    figure, axes = canvas.new_figure(5.4, 4.6)

    def served(h, p):
        return 0 <= h - p < taps

    def shade(h, p):
        return SHADES[h - p] if served(h, p) else "none"

    grid(axes, 0, 0, lines, outputs, shade, lambda h, p: f"r = {h - p}" if served(h, p) else "", alpha=0.5, line=0.5)
    for h in range(lines):
        box(axes, -2.2, h, 1.4, 1, face=BLUE, alpha=0.5, line=0.8)
        label(axes, -1.5, h + 0.5, f"h = {h}", size=8.5)
    for p in range(outputs):
        label(axes, p + 0.5, -0.5, f"p = {p}", size=8.5, color=MUTED)
    note = f"a line: one fragment of A, loaded once\na cell: {tile['TILES']} mma, for {layer.K} filters"
    label(axes, outputs / 2 - 1, outputs + taps, note, size=9, color=MUTED)
    frame(axes, (-2.6, outputs + 0.6), (outputs + taps + 1.1, -1.2), equal=False)
    return figure


PICTURES = fragments, ldmatrix, rows_in_banks, stages, image_rows  # each under its function's name
