"""Charts of records: speed-ups on each preset, rooflines, sweeps, what instructions are for, ideas by worth."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from common.catalog import catalog, problems
from common.records import records
from common.records.records import MachineCode, Record, Row
from common.report import canvas, figures
from common.report.canvas import BLUE, GREEN, INK, MUTED, ORANGE, PAPER, PURPLE, SKY, VERMILION, YELLOW
from common.report.table import OLDER, SIGNS, explained, signs
from common.run.messages import PeerRow, Tile
from common.timing import ceilings as measured

CHARTS = catalog.ROOT / "results" / "charts"  # the shipped ones

USEFUL = ("gemm", "conv2d", "conv3d")  # ladders of which pages show what instructions are for
MARKERS = "osD^vPX<>*ph8dH"
_BESIDE: dict[str, Any] = {"xytext": (8, 0), "textcoords": "offset points", "va": "center"}
SIGN_COLOURS = dict(zip(SIGNS, (PURPLE, GREEN, ORANGE, SKY, GREEN), strict=True))
_ROOFS = {"multiply-adds": "fp32", "TF32 multiply-adds": "tf32"}  # precisions
FLOOR_STYLES: tuple[Any, ...] = (":", "-.", (0, (1, 4)), (0, (4, 4)))
# What instructions are for; a class that is not named here is "other".
MIX_COLOURS = {
    "multiply-add": BLUE,
    "shared load": ORANGE,
    "global load": VERMILION,
    "constant load": YELLOW,
    "store": PURPLE,
    "integer and address": "#c3cad1",
    "other": "#e8ecef",
}


def drawn(record: Record, ladder: str) -> Iterator[tuple[str, Figure]]:
    """A ladder's charts, of what the record has, with their names; without one, what ideas were worth."""
    if not ladder and any(gain for _, _, gain in figures.worths(record)):
        yield "worth", worth(record)
    presets = problems.timed_presets(ladder) if ladder else []
    for preset in presets:
        if _step_rows(record, preset):
            yield preset, speedups(record, preset)
        for name in record.data.sweeps.get(preset, {}):
            yield f"sweep-{preset}-{name}", sweep(record, preset, name)
    if record.ceilings and ladder in figures.ROOFLINES and any(_step_rows(record, preset) for preset in presets):
        yield f"roofline-{ladder}", roofline(record, ladder)


def speedups(record: Record, preset: str) -> Figure:
    """Bars in ladder order, by :func:`_gains`: ms on each, p20 to p80 as error bars; peers and the floor as lines.
    Steps that ran the same layer channels-last follow in another colour."""
    own, layer = _step_rows(record, preset), problems.CHANNELS_LAST.get(preset, "")
    size, known = record.usual(preset).flops, signs()
    twins = [(name, row) for name, row in _step_rows(record, layer) if record.problem(layer, row).flops == size]
    rows, ticks = own + twins, [signed(*one) for one in own] + [f"{signed(*one)} (NHWC)" for one in twins]
    gains, spread, one_ms, said = _gains(record, preset, rows)
    lines = list[tuple[str, float, str, Any]]()  # of the libraries and floors
    for name, row in sorted(record.usual_rows(preset).items()):
        if isinstance(row, PeerRow):
            look = (PURPLE, "--") if records.rounds_operands(name) else (VERMILION, "-")
            lines.append((figures.spoken(name, row), row.timing.median_ms, *look))
    for (name, one), style in zip(record.floors(preset), FLOOR_STYLES, strict=False):
        lines.append((f"{name} ({one.floor_kind})", one.floor_ms, INK, style))
    label = labelled(f"{said} (logarithmic)", ticks)
    figure, axes = canvas.new_figure(9.6, 2.1 + 0.5 * len(rows) + 0.2 * ("\n" in label))
    places = np.arange(len(rows))
    colours = [SIGN_COLOURS.get(known.get(name, ""), BLUE) for name, _ in own] + [ORANGE] * len(twins)
    ends = {"ecolor": INK, "capsize": 3, "elinewidth": 1.2}
    axes.barh(places, gains, height=0.62, color=colours, xerr=spread, error_kw=ends)
    for place, gain, (_, row) in zip(places, gains, rows, strict=True):
        text = f"{figures.milliseconds(row.timing.median_ms)} ms"
        if one_ms == rows[0][1].timing.median_ms:
            text = f"{figures.times_as_fast(gain)}×  {text}"
        if beside := getattr(row, "beside", None):
            text += f"  {beside.ratio:.2f}× {beside.peer}"
        at = {"xy": (1.0, place), "xycoords": ("axes fraction", "data")}
        axes.annotate(text, **at, fontweight="bold", **_BESIDE)
    for name, ms, colour, style in lines:
        name = f"{name}: {figures.milliseconds(ms)} ms"
        axes.axvline(one_ms / ms, color=colour, linestyle=style, linewidth=2, label=name, zorder=3)
    axes.set_yticks(places, ticks)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    most = max([*gains, *(one_ms / ms for _, ms, _, _ in lines)])
    canvas.log_scale(axes, "x", min(0.8, 0.7 * min(gains)), most * 1.25)
    canvas.gridded(axes, "x")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(label)
    problem, asked = record.problem(preset, rows[0][1]), problems.preset(preset)
    dense = {k: v for k, v in problem.shape().items() if not k.startswith(("stride", "pad", "dilation"))}
    title = f"{preset}: {' '.join(f'{k}={v}' for k, v in dense.items())}"
    if problem.batch_key and problem != asked:
        title += f"  (N reduced from {getattr(asked, 'N', '')})"
    run = record.run_of(rows[-1][1])
    source = f"{record.gpu_name}, driver {run.driver}, {figures.versions(run.packages)}, {run.date}"
    canvas.headings(figure, title, source, math.ceil(len(lines) / 3))
    return figure


def _gains(record: Record, preset: str, rows: list[tuple[str, Row]]) -> tuple[Any, Any, float, str]:
    """Speeds of the rows, their distances to the p20 and p80, the milliseconds that count as 1, and what they are. A
    library's time of another minute may be of another clock: ratios in turn come first where all rows have one."""
    besides = [one for _, row in rows if (one := getattr(row, "beside", None))]
    peers = {one.peer for one in besides}
    library = record.row(preset, peers.pop()) if len(besides) == len(rows) and len(peers) == 1 else None
    if library:
        one_ms, said = library.timing.median_ms, f"speed as a multiple of {besides[0].peer}'s, timed in turn with it"
        found = [(one.ratio, one.ratio_p20, one.ratio_p80) for one in besides]
    else:
        one_ms, said = rows[0][1].timing.median_ms, f"speed-up over {rows[0][0]}"
        times = [row.timing for _, row in rows]  # a slow p80 is a low speed-up
        found = [(one_ms / one.median_ms, one_ms / one.p80_ms, one_ms / one.p20_ms) for one in times]
    gains, *ends = np.array(found).T
    return gains, np.abs(ends - gains), one_ms, said


def useful(code: MachineCode, ladder: str) -> Figure:
    """Bars in ladder order: what the instructions of each step's hot loop are for, on the ladder's first preset."""
    steps = [step.name for step in catalog.steps() if step.ladder == ladder]
    found = {name: hot for name in steps if (hot := figures.hot_loop(code, name))}
    figure, axes = canvas.new_figure(9.6, 2.45 + 0.42 * len(found))
    for what, colour in MIX_COLOURS.items():
        axes.barh(0, 0, color=colour, label=what)
    for place, hot in enumerate(found.values()):
        mix, start = {what: hot.mix.get(what, 0) for what in MIX_COLOURS}, 0.0
        mix["other"] += hot.total - sum(mix.values())
        for what, count in mix.items():
            look = {"height": 0.66, "color": MIX_COLOURS[what], "edgecolor": PAPER, "linewidth": 0.6}
            axes.barh(place, count / hot.total, left=start, **look)
            start += count / hot.total
        text = f"{hot.useful:.0%}  {hot.mix.get('multiply-add', 0)} of {hot.total}"
        axes.annotate(text, (1.0, place), fontweight="bold", **_BESIDE)
    ticks = [signed(name) for name in found]
    axes.set_yticks(range(len(found)), ticks)
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    said = "instructions of the innermost multiply loop; those that multiply and add are useful"
    axes.set_xlabel(labelled(said, ticks))
    architecture = records.code_kernels(code, next(iter(found)))[0].architecture
    source = f"compute capability {architecture}; {figures.versions(code.tools)}"
    canvas.headings(figure, f"Useful fraction per step, {ladder} ladder", source, legend=3)
    return figure


def roofline(record: Record, ladder: str) -> Figure:
    """Arithmetic intensity, of least traffic, against GFLOP/s: a point for each step and preset; the ceilings."""
    assert record.ceilings is not None
    bandwidth, presets = record.ceilings.copy_gbs, problems.timed_presets(ladder)
    figure, axes = canvas.new_figure(9.6, 6.0)
    names = [step.name for step in catalog.steps() if step.ladder == ladder]
    colours = dict(zip(names, mpl.colormaps["viridis"](np.linspace(0.0, 0.92, max(2, len(names)))), strict=True))
    points, older = list[tuple[float, float]](), dict[str, Row]()
    for marker, preset in zip(MARKERS, presets, strict=False):
        for name, row in _step_rows(record, preset):
            if derived := record.derive(preset, row):
                points.append((record.problem(preset, row).intensity, derived.gflops))
                look = {"marker": marker, "color": colours[name], "markersize": 9, "markeredgecolor": INK}
                axes.plot(*points[-1], **look, markeredgewidth=0.7, linestyle="none", zorder=4)
                older |= {name: row} if records.older(row, name) else {}
        if record.rows(preset):
            axes.plot([], [], marker=marker, color=MUTED, linestyle="none", markersize=8, label=preset)
    ticks = [signed(name, older.get(name)) for name in names]
    for name, tick in zip(names, ticks, strict=True):
        axes.plot([], [], color=colours[name], linewidth=6, label=tick)
    problem = problems.preset(presets[0])
    roofs = {said: peak for said, one in _ROOFS.items() if (peak := measured.peak(record.ceilings, problem, one))}
    shown = [x for x, _ in points] + [peak / bandwidth for peak in roofs.values()]
    low, high = min(shown) / 3, max(shown) * 4
    for said, peak in roofs.items():
        reach = np.array([low, peak / bandwidth, high])
        style = {"color": MUTED, "linestyle": "--"} if said.startswith("TF32") else {"color": INK, "zorder": 3}
        axes.plot(reach, np.minimum(reach * bandwidth, peak), linewidth=2, **style)
        above = {"xytext": (-4, 6), "textcoords": "offset points", "ha": "right", "fontsize": 10}
        axes.annotate(f"{said}: {peak / 1e3:.1f} TFLOP/s", (high, peak), **above)
    axes.text(low * 1.05, low * bandwidth * 2.5, f"copy: {bandwidth / 1e3:.2f} TB/s", fontsize=10)
    canvas.log_scale(axes, "x", low, high)
    canvas.log_scale(axes, "y", min([low * bandwidth, *(y for _, y in points)]) / 2, max(roofs.values()) * 2)
    canvas.gridded(axes)
    axes.set_xlabel(labelled("arithmetic intensity, FLOP per byte of least traffic", ticks))
    axes.set_ylabel("GFLOP/s")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    date = record.run_of(record.ceilings).date
    canvas.headings(figure, f"Roofline, {ladder} ladder", f"{record.gpu_name}, measured {date}")
    return figure


def worth(record: Record) -> Figure:
    """Bars: how many times as fast as the step it grew from each step is. It is narrow, for a telephone's screen."""
    found = [(step, preset, gain) for step, preset, gain in figures.worths(record) if gain]
    beside: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 10}
    ground = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.5}  # hides the lines behind a name
    at_left: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "xytext": (3, 0), "bbox": ground}
    figure, axes = canvas.new_figure(5.0, 1.1 + 0.34 * len(found))
    for place, (step, preset, gain) in enumerate(found):
        axes.barh(place + 0.2, gain.value - 1, left=1, height=0.36, color=VERMILION if gain.shown < 1 else BLUE)
        axes.annotate(f"{step.name}, {preset}", (0, place - 0.25), **at_left, **beside)
        said = f"{gain}×{' a loss' if gain.shown < 1 else ''}"
        axes.annotate(said, (max(1.0, gain.value), place + 0.2), xytext=(4, 0), fontweight="bold", **beside)
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_yticks([])
    axes.set_ylim(len(found) - 0.3, -0.7)
    canvas.log_scale(axes, "x", min(0.8, 0.8 * found[-1][2].value), 3 * found[0][2].value)
    canvas.gridded(axes, "x")
    axes.set_xlabel("times as fast as the step it grew from (logarithmic)")
    days = {record.run_of(record.rows(preset)[step.name]).date for step, preset, _ in found}
    canvas.headings(figure, "What each idea was worth", f"{record.gpu_name}, {min(days)} to {max(days)}")
    return figure


def sweep(record: Record, preset: str, name: str) -> Figure:
    """A heat map of a sweep: half of the tunables that vary across, half down. The shipped tile is marked."""
    entry = record.sweep(preset, name)
    assert entry is not None
    points, shipped = entry.points, entry.shipped
    varied = [key for key in shipped if len({point.tile[key] for point in points}) > 1] or list(shipped)[:1]
    down, across = varied[: len(varied) // 2], varied[len(varied) // 2 :]

    def place(tile: Tile) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return tuple(int(tile[key]) for key in down), tuple(int(tile[key]) for key in across)

    times = {place(point.tile): point.median_ms for point in points}
    rows, columns = (sorted({one[axis] for one in times}) for axis in (0, 1))
    grid = np.array([[times.get((row, column)) or np.nan for column in columns] for row in rows])
    figure, axes = canvas.new_figure(9.6, 1.9 + 0.5 * len(rows))
    image = axes.imshow(np.log(grid), cmap="viridis_r", aspect="auto")
    for (i, j), ms in np.ndenumerate(grid):
        text, dark = ("refused", False) if np.isnan(ms) else (f"{ms:#.3g}", float(image.norm(np.log(ms))) > 0.5)
        axes.text(j, i, text, ha="center", va="center", color=PAPER if dark else INK, fontsize=10)
    if (ours := place(shipped)) in times:
        corner = columns.index(ours[1]) - 0.5, rows.index(ours[0]) - 0.5
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=VERMILION, linewidth=3))
    axes.set_yticks(range(len(rows)), [", ".join(map(str, row)) for row in rows])
    axes.set_xticks(range(len(columns)), [", ".join(map(str, column)) for column in columns])
    axes.set_ylabel(", ".join(down))
    axes.set_xlabel(", ".join(across))
    source = f"{record.gpu_name}, {record.run_of(entry).date}; the shipped tile is marked"
    source += "; measured on an older version of the file" if records.older(entry, name) else ""
    canvas.headings(figure, f"{signed(name)} on {preset}: milliseconds by tile", source)
    return figure


def _step_rows(record: Record, preset: str) -> list[tuple[str, Row]]:
    """The preset's measured steps in ladder order, of the size at which most of it ran."""
    found = record.usual_rows(preset)
    return [(step.name, found[step.name]) for step in catalog.steps() if step.name in found]


def signed(name: str, entry: Row | None = None) -> str:
    """A step's name as a chart shows it: with its sign, if it multiplies on tensor cores, and with that of age."""
    return " ".join(filter(None, [name, signs().get(name), OLDER if records.older(entry, name) else ""]))


def labelled(label: str, names: Iterable[str]) -> str:
    """An axis's label, and below it what the signs behind these names mean."""
    return "\n".join([label, *explained({word for name in names for word in name.split()})])
