"""Charts of records: speed-ups on each preset, a roofline for each ladder, sweeps, what instructions do."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import matplotlib.patches
import numpy as np

from common.catalog import catalog, problems
from common.machine_code.summaries import HotLoop
from common.records import current, records
from common.records.entries import MachineCode, PeerRow, Row, StepRow
from common.records.records import Record
from common.report import canvas, figures, speeds
from common.report.canvas import BLUE, GREEN, INK, MUTED, ORANGE, PAPER, PURPLE, SKY, VERMILION, YELLOW
from common.report.table import OLDER, SIGNS, explained, signs
from common.run.messages import Tile
from common.timing import ceilings as measured

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CHARTS = catalog.ROOT / "results" / "charts"  # the shipped ones

USEFUL = ("gemm", "conv2d", "conv3d")  # ladders of which pages show what instructions are for
MARKERS = "osD^vPX<>*ph8dH"
SIGN_COLOURS = dict(zip(SIGNS, (PURPLE, GREEN, ORANGE, SKY, GREEN), strict=True))
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


def draw_ladder(record: Record, ladder: str, folder: Path) -> list[Path]:
    """Draw a ladder's charts, of what the record has, in ``folder``; returns the PNG files."""
    written = []
    timed = [name for name in problems.timed_presets(ladder) if _step_rows(record, name)]
    for preset in timed:
        written.append(canvas.save(speedups(record, preset), folder / preset))
        for name in record.data.sweeps.get(preset, {}):
            written.append(canvas.save(sweep(record, preset, name), folder / f"sweep-{preset}-{name}"))
    if timed and record.ceilings and measured.peak(record.ceilings, problems.preset(timed[0])):
        written.append(canvas.save(roofline(record, ladder), folder / f"roofline-{ladder}"))
    return written


def draw_worth(record: Record, folder: Path) -> list[Path]:
    """Draw what each idea was worth, if the record has any, in ``folder``; returns the PNG files."""
    return [canvas.save(worth(record), folder / "worth")] if any(one.gain for one in speeds.worths(record)) else []


def draw_code(code: MachineCode, folder: Path = CHARTS) -> list[Path]:
    """Draw the useful fraction of the steps of USEFUL from the machine-code record; returns the PNG files."""
    return [
        canvas.save(useful(code, ladder), folder / "machine-code" / f"useful-{ladder}")
        for ladder in USEFUL
        if any(step.ladder == ladder and records.code_kernels(code, step.name) for step in catalog.steps())
    ]


def speedups(record: Record, preset: str) -> Figure:
    """Bars in ladder order: speed-up over the first step, or speed beside the library where all were timed in turn
    with it; ms on each bar, p20 to p80 as error bars; peers and the floor as lines. Steps that ran the same layer
    channels-last follow in another colour. A step that was measured on an older version of its file is marked."""
    own = _step_rows(record, preset)
    size, twin = record.usual(preset).flops, problems.CHANNELS_LAST.get(preset, "")
    layer = record.channels_last(preset)
    twins = [(step.name, row) for step, row in layer if record.problem(twin, row).flops == size]
    rows = own + [(f"{name} (NHWC)", row) for name, row in twins]
    older = [current.older(row, name) for name, row in own + twins]
    gains, spread, one_ms, said = _gains(record, preset, rows)
    lines = _lines(record, preset)
    most = max([*gains, *(one_ms / ms for _, ms, _, _ in lines)], default=1.0)

    known = signs()
    explanations = any(name in known for name, _ in rows) + any(older)
    figure, axes = canvas.new_figure(9.6, 2.1 + 0.5 * len(rows) + 0.2 * explanations)
    places = np.arange(len(rows))
    axes.barh(
        places,
        gains,
        height=0.62,
        color=[SIGN_COLOURS.get(known.get(name, ""), BLUE) for name, _ in own] + [ORANGE] * (len(rows) - len(own)),
        xerr=spread,
        error_kw={"ecolor": INK, "capsize": 3, "elinewidth": 1.2},
    )
    for place, gain, (_, row) in zip(places, gains, rows, strict=True):
        faster = f"{figures.times_as_fast(gain)}×  " if one_ms == rows[0][1].timing.median_ms else ""
        beside = row.beside if isinstance(row, StepRow) else None
        in_turn = f"  {beside.ratio:.2f}× {beside.peer}" if beside else ""
        axes.annotate(
            f"{faster}{_ms(row.timing.median_ms)}{in_turn}",
            (1.0, place), xycoords=("axes fraction", "data"), xytext=(8, 0), textcoords="offset points", va="center",
            fontweight="bold",
        )  # fmt: skip
    for label, ms, colour, style in lines:
        axes.axvline(one_ms / ms, color=colour, linestyle=style, linewidth=2, label=f"{label}: {_ms(ms)}", zorder=3)
    axes.set_yticks(places, [signed(name, old) for (name, _), old in zip(rows, older, strict=True)])
    axes.invert_yaxis()
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xscale("log")
    axes.set_xlim(min(0.8, 0.7 * min(gains)), most * 1.25)
    canvas.plain_log_ticks(axes.xaxis, axes.get_xlim())
    canvas.gridded(axes, "x")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(labelled(f"{said} (logarithmic)", (name for name, _ in rows), any(older)))
    problem, asked = record.problem(preset, rows[0][1]), problems.preset(preset)
    dense = {k: v for k, v in problem.shape().items() if not k.startswith(("stride", "pad", "dilation"))}
    title = f"{preset}: {' '.join(f'{k}={v}' for k, v in dense.items())}"
    if problem.batch_key and problem != asked:
        title += f"  (N reduced from {getattr(asked, 'N', '')})"
    canvas.headings(figure, title, source(record, rows[-1][1]), math.ceil(len(lines) / 3))
    return figure


def _gains(record: Record, preset: str, rows: list[tuple[str, Row]]) -> tuple[Any, Any, float, str]:
    """Speeds of the rows, their distances to the p20 and p80, the milliseconds that count as 1, and what they are. A
    library's time of another minute may be of another clock: ratios in turn come first where all rows have one."""
    besides = [row.beside for _, row in rows if isinstance(row, StepRow) and row.beside]
    peers = {one.peer for one in besides}
    library = record.row(preset, peers.pop()) if len(besides) == len(rows) and len(peers) == 1 else None
    if library:
        gains = np.array([one.ratio for one in besides])
        ends = np.array([[one.ratio_p20, one.ratio_p80] for one in besides]).T
        said = f"speed as a multiple of {besides[0].peer}'s, timed in turn with it"
        return gains, np.abs(ends - gains), library.timing.median_ms, said
    first = rows[0][1].timing.median_ms
    gains = np.array([first / row.timing.median_ms for _, row in rows])
    # a slow p80 is a low speed-up
    ends = np.array([[first / row.timing.p80_ms, first / row.timing.p20_ms] for _, row in rows]).T
    return gains, np.abs(ends - gains), first, f"speed-up over {rows[0][0]}"


def useful(code: MachineCode, ladder: str) -> Figure:
    """Bars in ladder order: what the instructions of each step's hot loop are for; multiply-adds are the useful
    ones. One part for the ladder's first preset, and one for each other that some step compiles different code for;
    presets whose loops have the same instructions share one."""
    names = [step.name for step in catalog.steps() if step.ladder == ladder]
    found = {name: code.steps[name] for name in names if records.code_kernels(code, name)}
    first = next(iter(found.values())).preset
    others = [p for p in problems.timed_presets(ladder) if any(p in (e.other_presets or ()) for e in found.values())]
    groups: dict[str, tuple[list[HotLoop], list[str | None]]] = {}  # the steps' loops, and the presets that have them
    for preset in [first, *(preset for preset in others if preset != "photo")]:  # its kernels are layer 1's but for W
        hots = [hot for name in found if (hot := figures.hot_loop(code, name, preset))]
        groups.setdefault(str([hot.mix for hot in hots]), (hots, []))[1].append(preset)
    figure, parts = canvas.new_figure(
        9.6, 1.9 + len(groups) * (0.55 + 0.42 * len(found)), rows=len(groups), squeeze=False
    )
    for axes, (hots, presets) in zip(parts[:, 0], groups.values(), strict=True):
        for place, hot in enumerate(hots):
            start, mix = 0.0, dict.fromkeys(MIX_COLOURS, 0)
            for what, count in hot.mix.items():
                mix[what if what in mix else "other"] += count
            for what, count in mix.items():
                look = {"height": 0.66, "color": MIX_COLOURS[what], "edgecolor": PAPER, "linewidth": 0.6}
                axes.barh(place, count / hot.total, left=start, **look)
                start += count / hot.total
            text = f"{hot.useful:.0%}  {hot.mix.get('multiply-add', 0)} of {hot.total}"
            beside = {"xytext": (8, 0), "textcoords": "offset points", "va": "center"}
            axes.annotate(text, (1.0, place), fontweight="bold", **beside)
        axes.set_yticks(range(len(found)), [signed(name) for name in found])
        axes.set_ylim(len(found) - 0.5, -0.5)
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        if len(groups) > 1:
            axes.set_title(", ".join(map(str, presets)), fontsize=11, loc="left")
    said = "instructions of the innermost multiply loop; those that multiply and add are useful"
    parts[-1, 0].set_xlabel(labelled(said, found))
    for what, colour in MIX_COLOURS.items():
        parts[0, 0].barh(0, 0, color=colour, label=what)
    architecture = next(iter(found.values())).kernels[0].architecture
    source = f"compute capability {architecture}; {figures.versions(code.tools)}"
    canvas.headings(figure, f"Useful fraction per step, {ladder} ladder", source, legend=3)
    return figure


def roofline(record: Record, ladder: str) -> Figure:
    """Arithmetic intensity against GFLOP/s under the measured ceilings, one point per step and preset. Intensity
    counts least traffic (each operand moved once), so the points of one preset stand in one column and the gap above
    them is what is left to gain."""
    ceilings = record.ceilings
    assert ceilings is not None
    figure, axes = canvas.new_figure(9.6, 6.0)
    bandwidth = ceilings.copy_gbs
    peak = measured.peak(ceilings, problems.preset(problems.timed_presets(ladder)[0]))
    assert peak is not None
    names = [step.name for step in catalog.steps() if step.ladder == ladder]
    colours = dict(zip(names, mpl.colormaps["viridis"](np.linspace(0.0, 0.92, max(2, len(names)))), strict=False))
    points, looks, older = [], [], set()
    for marker, preset in zip(itertools.cycle(MARKERS), problems.timed_presets(ladder), strict=False):
        rows = _step_rows(record, preset)
        for name, row in rows:
            derived = record.derive(preset, row)
            if derived:
                points.append((record.problem(preset, row).intensity, derived.gflops))
                looks.append({"marker": marker, "color": colours[name]})
                older |= {name} if current.older(row, name) else set()
        if rows:
            axes.plot([], [], marker=marker, color=MUTED, linestyle="none", markersize=8, label=preset)
    for name in names:
        axes.plot([], [], color=colours[name], linewidth=6, label=signed(name, name in older))
    ridge = peak / bandwidth
    intensities, rates = zip(*points, strict=True)
    low, high = min([*intensities, ridge]) / 3, max([*intensities, ridge]) * 4
    others = _further_peaks(record, ladder)
    bottom, top = min([*rates, low * bandwidth]) / 2, max([peak, *others.values()]) * 2
    for (x, y), look in zip(_side_by_side(points, (low, high), (bottom, top)), looks, strict=True):
        axes.plot(x, y, **look, markersize=9, markeredgecolor=INK, markeredgewidth=0.7, linestyle="none", zorder=4)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(bottom, top)
    canvas.plain_log_ticks(axes.xaxis, axes.get_xlim())
    canvas.plain_log_ticks(axes.yaxis, axes.get_ylim())
    unit = problems.LADDERS[ladder].operation
    _roof(axes, bandwidth, peak, others, unit)
    canvas.gridded(axes)
    aside = "(points that would hide one another stand side by side)"
    said = f"arithmetic intensity, {unit} per byte of least traffic\n{aside}"
    axes.set_xlabel(labelled(said, names, bool(older)))
    axes.set_ylabel(f"G{unit}/s")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    canvas.headings(
        figure, f"Roofline, {ladder} ladder", f"{record.gpu_name}, measured {record.run_of(ceilings).date}"
    )
    return figure


def _roof(axes: Any, bandwidth: float, peak: float, others: dict[str, float], unit: str) -> None:
    """The bound of bandwidth and peak, and further peaks by name, each with what it is."""
    low, high = axes.get_xlim()
    ridge = peak / bandwidth
    reach = np.array([low, ridge, high])
    axes.plot(reach, np.minimum(reach * bandwidth, peak), color=INK, linewidth=2.2, zorder=3)
    beside: dict[str, Any] = {"textcoords": "offset points", "fontsize": 10}
    at = beside | {"xytext": (-4, 6), "ha": "right"}
    axes.annotate(f"multiply-adds: {peak / 1e3:.1f} T{unit}/s", (high, peak), **at)
    for said, other in others.items():
        reach = np.array([min(ridge, other / bandwidth), other / bandwidth, high])
        (line,) = axes.plot(reach, np.minimum(reach * bandwidth, other), "--", color=MUTED, linewidth=1.6, zorder=2)
        if other > peak:
            axes.annotate(f"{said}: {other / 1e3:.0f} T{unit}/s", (high, other), color=MUTED, **at)
        else:  # points lie about a lower roof: the legend names it
            line.set_label(f"{said}: {other / 1e3:.0f} T{unit}/s")
    axes.annotate(f"copy: {bandwidth / 1e3:.2f} TB/s", (low, peak), xytext=(6, 6), **beside)


def _further_peaks(record: Record, ladder: str) -> dict[str, float]:
    """By name, rates in GFLOP/s besides the ladder's: of TF32 where a step uses it, and of ``mma.sync``."""
    ceilings = record.ceilings
    assert ceilings is not None
    presets = problems.timed_presets(ladder)
    problem, half = problems.preset(presets[0]), problems.LADDERS[ladder].input_dtype != problems.FLOAT32
    rows = [row for preset in presets for _, row in _step_rows(record, preset)]
    found: dict[str, float | None] = {}
    if half:
        found["mma.sync"] = measured.peak(ceilings, problem, instructions=measured.INSTRUCTIONS[:1])
    elif any(isinstance(row, StepRow) and row.precision for row in rows):
        found = {f"TF32, {one}": measured.peak(ceilings, problem, "tf32", [one]) for one in measured.INSTRUCTIONS}
    peak = measured.peak(ceilings, problem)
    return {said: rate for said, rate in found.items() if rate and rate != peak}


def _side_by_side(
    points: list[tuple[float, float]], x_range: tuple[float, float], y_range: tuple[float, float]
) -> list[tuple[float, float]]:
    """The points of a logarithmic chart, those sideways a little that an earlier one would cover."""
    width, height = np.log(x_range[1] / x_range[0]), np.log(y_range[1] / y_range[0])
    aside, across, along = 0.03 * width, 0.026 * width, 0.028 * height  # of the axes: a step aside, and a marker
    placed: list[tuple[float, float]] = []
    for x, y in np.log(points):
        steps = sorted(range(-len(points), len(points) + 1), key=lambda step: (abs(step), -step))
        free = (
            (x + step * aside, y)
            for step in steps
            if not any(abs(x + step * aside - a) < across and abs(y - b) < along for a, b in placed)
        )
        placed.append(next(free))
    return [(float(np.exp(x)), float(np.exp(y))) for x, y in placed]


def worth(record: Record) -> Figure:
    """Bars by worth: how many times as fast as the step it grew from each step is, losses to the left of 1. It is
    narrow, and each bar has its name above it, for a telephone's screen."""
    found = [(one, one.gain) for one in speeds.worths(record) if one.gain]
    beside: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 10}
    ground = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.5}  # hides the lines behind a name
    at_left: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "xytext": (3, 0), "bbox": ground}
    figure, axes = canvas.new_figure(5.0, 1.1 + 0.34 * len(found))
    for place, (one, gain) in enumerate(found):
        axes.barh(place + 0.2, gain.value - 1, left=1, height=0.36, color=VERMILION if gain.shown < 1 else BLUE)
        named = f"{one.step.name}{f' {OLDER}' if one.older else ''}, {one.preset}"
        axes.annotate(named, (0, place - 0.25), **at_left, **beside)
        said = f"{gain.text}×{' a loss' if gain.shown < 1 else ''}"
        axes.annotate(said, (max(1.0, gain.value), place + 0.2), xytext=(4, 0), fontweight="bold", **beside)
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_yticks([])
    axes.set_ylim(len(found) - 0.3, -0.7)
    axes.set_xscale("log")
    axes.set_xlim(min(0.8, 0.8 * found[-1][1].value), 3 * found[0][1].value)
    canvas.plain_log_ticks(axes.xaxis, axes.get_xlim())
    canvas.gridded(axes, "x")
    said = "times as fast as the step it grew from (logarithmic)"
    axes.set_xlabel(labelled(said, (), any(one.older for one, _ in found)))
    days = {record.run_of(row).date for one, _ in found if (row := record.row(one.preset, one.step.name))}
    canvas.headings(figure, "What each idea was worth", f"{record.gpu_name}, {min(days)} to {max(days)}")
    return figure


def sweep(record: Record, preset: str, name: str) -> Figure:
    """A sweep: a line over the one tunable that varies, or a heat map, half of those that vary across and half down.
    The shipped tile is marked; tiles that the step refuses say so, and so does a sweep that is older than the
    code."""
    entry = record.sweep(preset, name)
    assert entry is not None
    points, shipped = entry.points, entry.shipped
    varied = [key for key in shipped if len({point.tile[key] for point in points}) > 1] or list(shipped)[:1]
    title = f"{signed(name)} on {preset}: milliseconds by tile"
    source = f"{record.gpu_name}, {record.run_of(entry).date}; the shipped tile is marked"
    source += "" if current.sweep(record, preset, name) else "; measured on an older version of the file"
    across, down = varied[len(varied) // 2 :], varied[: len(varied) // 2]
    columns = sorted({_tile_key(point.tile, across) for point in points})
    if not down:
        figure, axes = canvas.new_figure(9.6, 3.8)
        times = {_tile_key(p.tile, across): p.median_ms for p in points if p.median_ms is not None}
        shown = [(i, times[key]) for i, key in enumerate(columns) if key in times]
        axes.plot(*zip(*shown, strict=True), color=BLUE, marker="o", linewidth=2, markersize=8)
        for i, ms in shown:
            axes.annotate(_ms(ms), (i, ms), xytext=(0, 11), textcoords="offset points", ha="center")
        ours = _tile_key(shipped, across)
        if ours in times:
            ring = {"markersize": 17, "markerfacecolor": "none", "color": VERMILION, "markeredgewidth": 2}
            axes.plot(columns.index(ours), times[ours], "o", **ring)
        axes.set_ylabel("ms")
        axes.set_ylim(0, max(ms for _, ms in shown) * 1.2)
    else:
        rows = sorted({_tile_key(point.tile, down) for point in points})
        figure, axes = canvas.new_figure(9.6, 1.9 + 0.5 * len(rows))
        grid = np.full((len(rows), len(columns)), np.nan)
        for point in points:
            cell = rows.index(_tile_key(point.tile, down)), columns.index(_tile_key(point.tile, across))
            grid[cell] = np.nan if point.median_ms is None else point.median_ms
        image = axes.imshow(np.log(grid), cmap="viridis_r", aspect="auto")
        for (i, j), ms in np.ndenumerate(grid):
            text, dark = ("refused", False) if np.isnan(ms) else (f"{ms:#.3g}", float(image.norm(np.log(ms))) > 0.5)
            axes.text(j, i, text, ha="center", va="center", color=PAPER if dark else INK, fontsize=10)
        place = _tile_key(shipped, across), _tile_key(shipped, down)
        if place[0] in columns and place[1] in rows:
            corner = columns.index(place[0]) - 0.5, rows.index(place[1]) - 0.5
            axes.add_patch(mpl.patches.Rectangle(corner, 1, 1, fill=False, edgecolor=VERMILION, linewidth=3))
        axes.set_yticks(range(len(rows)), [", ".join(map(str, key)) for key in rows])
        axes.set_ylabel(", ".join(down))
    axes.set_xticks(range(len(columns)), [", ".join(map(str, key)) for key in columns])
    axes.set_xlabel(", ".join(across))
    canvas.headings(figure, title, source)
    return figure


def _tile_key(tile: Tile, names: list[str]) -> tuple[int, ...]:
    return tuple(int(tile[name]) for name in names)


def _step_rows(record: Record, preset: str) -> list[tuple[str, Row]]:
    """The preset's measured steps in ladder order, of the size at which most of it ran."""
    found = _of_usual_size(record, preset)
    return [(step.name, found[step.name]) for step in catalog.steps() if step.name in found]


def _of_usual_size(record: Record, preset: str) -> dict[str, Row]:
    """The rows whose times a chart may compare."""
    rows = record.rows(preset)
    return {name: row for name, row in rows.items() if record.problem(preset, row) == record.usual(preset)}


def _lines(record: Record, preset: str) -> list[tuple[str, float, str, Any]]:
    """Label, ms, colour and line style of the peers and the floor."""
    lines = []
    for name, row in sorted(_of_usual_size(record, preset).items()):
        if isinstance(row, PeerRow):
            look = (PURPLE, "--") if records.rounds_operands(name) else (VERMILION, "-")
            lines.append((speeds.spoken(name, row), row.timing.median_ms, *look))
    for (name, one), style in zip(record.floors(preset), FLOOR_STYLES, strict=False):
        lines.append((f"{name} ({one.floor_kind})", one.floor_ms, INK, style))
    return lines


def signed(name: str, older: bool = False) -> str:
    """A step's name as a chart shows it: with its sign, if it multiplies on tensor cores, and with that of age."""
    return " ".join([name, *filter(None, [signs().get(name), OLDER if older else ""])])


def labelled(label: str, names: Iterable[str], older: bool = False) -> str:
    """An axis's label, and below it what the signs of these steps mean, and that of age if one is ``older``."""
    known = signs()
    used = {known.get(name, "") for name in names} | ({OLDER} if older else set())
    return "\n".join([label, *explained(used)])


def source(record: Record, row: Row) -> str:
    run = record.run_of(row)
    return f"{record.gpu_name}, driver {run.driver}, {figures.versions(run.packages)}, {run.date}"


def _ms(value: float) -> str:
    return f"{figures.milliseconds(value)} ms"
