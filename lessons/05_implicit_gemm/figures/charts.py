"""The chart of a card's record that lesson 05 shows: its last steps and the library, layer by layer."""

from common.catalog import catalog, problems
from common.report import charts, speeds
from common.report.canvas import BLUE, INK, PAPER, SKY, VERMILION, gridded, headings, new_figure, save

LADDER = "conv3d"


def draw_card(record, folder):
    """Draw it into ``folder`` if a step of the ladder was timed; returns the PNG files."""
    return [save(per_layer(record), folder / f"layers-{LADDER}")] if _timed(record) else []


def _timed(record):
    """The last two of the ladder's FP32 steps that were timed, on whatever layer."""
    steps = [step.name for step in catalog.steps() if step.ladder == LADDER]
    names = [name for name in steps if speeds.peer(LADDER, name) == speeds.PEERS[LADDER]]
    return [name for name in names if any(record.row(at, name) for at in problems.timed_presets(LADDER))][-2:]


def per_layer(record):
    """TFLOP/s of the ladder's last two measured FP32 steps and of the library on each layer, and where the floor is.

    A bar of the library says how it computes where that is not the definition's multiply-adds.
    """
    peer, timed = speeds.PEERS[LADDER], _timed(record)
    shown = [preset for preset in problems.timed_presets(LADDER) if record.rows(preset)]
    found = {n: speeds.compare(record, LADDER, n, shown) for n in timed}
    older = {name for name in timed if any(layer.older for layer in found[name])}
    best = found[timed[-1]]
    colours = (SKY, BLUE)[-len(timed) :]
    bars = [(n, [la.tflops(la.ms) for la in found[n]], c) for n, c in zip(timed, colours, strict=True)]
    bars.append((peer, [la.tflops(la.peer_ms) for la in best], VERMILION))
    figure, axes = new_figure(9.6, 2.0 + (0.25 + 0.23 * len(bars)) * len(best))
    most = max([rate or 0 for _, rates, _ in bars for rate in rates])
    height = 0.8 / len(bars)
    for i, (name, rates, colour) in enumerate(bars):
        for place, (layer, rate) in enumerate(zip(best, rates, strict=True)):
            y = place + (i - (len(bars) - 1) / 2) * height
            unlike = name == peer and layer.peer_method in speeds.FEWER
            axes.barh(
                y, rate or 0, height=0.92 * height, color=colour, hatch="///" if unlike else None, edgecolor=PAPER,
                linewidth=0, label="" if place else charts.signed(name, name in older),
            )  # fmt: skip
            text = f"{rate:.1f}" if rate else "not timed yet"
            if name == peer and layer.peer_method:
                text += f"  {layer.peer_method}"
            elif name == timed[-1] and layer.percent_of_peer:
                text += f"  {layer.percent_of_peer:.0f}% of {peer.split()[0]}"
            axes.annotate(text, (rate or 0, y), xytext=(5, 0), textcoords="offset points", va="center", fontsize=9)
    for place, layer in enumerate(best):
        if layer.floor_ms:
            at = layer.tflops(layer.floor_ms)
            axes.plot([at, at], [place - 0.44, place + 0.44], color=INK, linestyle=":", linewidth=2,
                      label="" if place else "the floor's rate")  # fmt: skip
            most = max(most, at)
    axes.set_yticks(range(len(best)), [layer.preset for layer in best])
    axes.set_ylim(len(best) - 0.45, -0.55)
    axes.set_xlim(0, 1.3 * most)
    axes.set_xlabel(charts.labelled("TFLOP/s by the definition's multiply-adds", timed, bool(older)))
    gridded(axes, "x")
    axes.tick_params(axis="y", length=0)
    last = next(row for layer in reversed(best) for row in record.rows(layer.preset).values())
    headings(figure, f"{LADDER}, layer by layer", charts.source(record, last), legend=2, columns=2)
    return figure
