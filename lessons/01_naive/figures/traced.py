"""Pictures of traces, for several lessons: a warp's requests, and loads for each multiply-add, step by step."""

from collections import Counter

import matplotlib as mpl
import numpy as np
from matplotlib.patches import Rectangle

from common.catalog import catalog
from common.report.canvas import BLUE, MUTED, ORANGE, SKY, VERMILION, gridded, new_figure
from common.trace import trace
from common.trace.cost import BANKS, SECTOR_BYTES, WARP, served_together, wavefronts

_WORDS = SECTOR_BYTES // 4
_VERBS = {"read": "reads", "write": "writes", "copy": "copies", "atomic": "updates"}


def in_pairs(chosen, above):
    """One request of each access, two beside each other, with so many inches ``above``."""
    rows = -(-len(chosen) // 2)
    figure, axes = new_figure(9.6, above + 1.5 * rows, rows=rows, columns=2, squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for axis, access in zip(axes.flat, chosen, strict=False):
        request(axis, access)
    return figure


def request(axes, access):
    """The 32 lanes below, the sectors or banks above, a line from each lane to its own."""
    width = access.bits // 32
    sample = access.sample or []
    lanes = [(lane, place) for lane, place in enumerate(sample) if place is not None]
    colours = mpl.colormaps["viridis"](np.linspace(0.0, 0.9, WARP))
    for lane in range(WARP):
        used = sample[lane] is not None
        face = colours[lane] if used else "none"
        axes.add_patch(Rectangle((lane, 0), 0.86, 0.5, facecolor=face, edgecolor=MUTED, linewidth=0.3))
    if access.space == "global":
        places = {place + v for _, place in lanes for v in range(width)}
        order = sorted({place // _WORDS for place in places})
        step = WARP / max(len(order), 4)
        start = (WARP - step * len(order)) / 2
        for i, sector in enumerate(order):
            wanted = [w for w in range(_WORDS) if sector * _WORDS + w in places]
            size = 0.9 * step
            fill(axes, start + i * step, 2.6, size, 0.7, ORANGE)
            for w in wanted:
                left = start + i * step + w * size / _WORDS
                fill(axes, left, 2.6, max(size / _WORDS, 0.22), 0.7, BLUE)
            for w in range(1, _WORDS) if len(order) <= 16 else ():
                edge = start + i * step + w * size / _WORDS
                axes.plot([edge, edge], [2.6, 3.3], color="white", linewidth=0.5)
        goals = {lane: start + (order.index(place // _WORDS) + 0.45) * step for lane, place in lanes}
        unit = "sector" if len(order) == 1 else "sectors"
        found, below = f"{len(order)} {unit}", ""
    else:
        lanes, found, below = _banks_met(axes, access, width)
        for lane in range(WARP):
            if lane not in dict(lanes):  # served at another time
                axes.patches[lane].set_alpha(0.2)
        goals = {lane: place % BANKS + width / 2 - 0.07 for lane, place in lanes}
    for lane, goal in goals.items():
        axes.plot([lane + 0.43, goal], [0.55, 2.55], color=colours[lane], linewidth=0.8)
    place = "bank 0 … 31" if access.space == "shared" else ""
    axes.text(WARP / 2, -0.12, f"lane 0 … 31{below}", ha="center", va="top", fontsize=7.5, color=MUTED)
    axes.text(WARP, 3.45, place, ha="right", va="bottom", fontsize=7.5, color=MUTED)
    bits = f", {access.bits} bits each" if width > 1 else ""
    axes.text(
        0, 3.45, f"line {access.line} {_VERBS[access.op]} {access.array}{bits}: {found}", ha="left",
        va="bottom", fontsize=9, fontweight="bold",
    )  # fmt: skip
    axes.set_xlim(-0.4, WARP + 0.4)
    axes.set_ylim(-0.8, 4.3)


def _banks_met(axes, access, width):
    """Draw the banks that lanes ask for which are served at a time, of several such parts the one that takes longest.

    A bank that must deliver several words is red, with their number. Returns those lanes and where they read, what
    all lanes take, and what these take.
    """
    sample = access.sample or []
    words = np.array([[0 if place is None else place for place in sample]])
    active = np.array([[place is not None for place in sample]])
    write = access.op == "write" or access.op == "copy"
    together = served_together(words, active, width, write)
    passes = []
    for first in range(0, WARP, together):
        own = [(lane, place) for lane, place in enumerate(sample[first : first + together], first)]
        passes.append([(lane, place) for lane, place in own if place is not None])
    met = [Counter(word % BANKS for word in {place + v for _, place in own for v in range(width)}) for own in passes]
    most = [max(counts.values(), default=0) for counts in met]
    chosen = most.index(max(most))
    for bank in range(BANKS):
        count = met[chosen][bank]
        face = "none" if not count else BLUE if count == 1 else VERMILION
        axes.add_patch(Rectangle((bank, 2.6), 0.86, 0.7, facecolor=face, edgecolor=MUTED, linewidth=0.3))
        if count > 1:
            axes.text(bank + 0.43, 2.93, str(count), fontsize=6.5, ha="center", va="center", color="white")
    total = wavefronts(words, active, width, write).moved
    assert total == sum(most)
    below = ""
    if together < WARP:
        first = chosen * together
        below = f"; in colour lanes {first} to {first + together - 1}, served in {wavefront_count(most[chosen])}"
    return passes[chosen], wavefront_count(total), below


def wavefront_count(count):
    """In words."""
    return f"{count} wavefront{'s' if count > 1 else ''}"


def fill(axes, x, y, width, height, colour):
    """A rectangle without an edge."""
    axes.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor="none"))


def loads_per_fma(ladder="gemm", through=""):
    """Values read for each multiply-add, step by step, from global, constant and shared memory.

    With ``through``, of no lesson after that one.
    """
    steps = [step for step in catalog.steps() if step.ladder == ladder and (not through or step.lesson <= through)]
    problem = trace.SHAPES[ladder][0]
    spaces = {"global": BLUE, "constant": SKY, "shared": VERMILION}
    values = []
    for found in trace.results([trace.task(step, problem) for step in steps]):
        kernel = found.main
        values.append({space: kernel.per_fma[space]["loaded_values"] for space in spaces})
    spaces = {space: colour for space, colour in spaces.items() if any(cells[space] for cells in values)}
    figure, axes = new_figure(9.6, 1.4 + 0.24 * (len(spaces) + 0.8) * len(steps))
    height = 0.8 / len(spaces)
    least = min(value for cells in values for value in cells.values() if value) / 2
    for i, (space, colour) in enumerate(spaces.items()):
        places = np.arange(len(steps)) + (i - (len(spaces) - 1) / 2) * height
        axes.barh(places, [max(cells[space], least) for cells in values], height=0.9 * height, color=colour,
                  label=f"from {space} memory")  # fmt: skip
        for place, cells in zip(places, values, strict=True):
            text = f"{cells[space]:.3g}" if cells[space] else "none"
            axes.annotate(text, (max(cells[space], least), place), xytext=(4, 0), textcoords="offset points",
                          va="center", fontsize=9)  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlim(least, 5)
    axes.minorticks_off()
    ticks = [tick for tick in (0.001, 0.01, 0.1, 1.0) if tick > least]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_yticks(np.arange(len(steps)), [step.name for step in steps])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    gridded(axes, "x")
    axes.set_xlabel("floats read for each multiply-add of a thread (logarithmic)")
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.4, 1.12), ncols=len(spaces))
    return figure
