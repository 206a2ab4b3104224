"""The tables of pages, and those that commands print.

``<!-- table: KIND WORDS -->`` is written by its kind's function in :data:`TABLES`. It takes
``record`` or ``code`` if it needs one, then the words. It raises UnmeasuredError where there is nothing.
"""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from rich.text import Text

from common.catalog import catalog, problems
from common.catalog.catalog import Step
from common.catalog.problems import Problem
from common.machine_code import successor, summaries
from common.records import records
from common.records.records import Entry, MachineCode, Record, Row, StepRow
from common.report import figures
from common.report.figures import presets_in
from common.report.table import OLDER, Cell, Table, titled
from common.run.messages import Outcome, PeerRow, Tile
from common.timing import peers
from common.timing.ceilings import Ceilings
from common.timing.timing import Point

HEADER = ["step", "ms", "p20–p80", "× first", "× previous", "GFLOP/s", "% of floor"]
OPTIONAL = ("prepare ms", "workspace MB")  # columns of tables in which a row has them


class UnmeasuredError(Exception):
    """Nothing was measured of what a table shows: of what."""


def ladder(record: Record, preset: str, lesson: str = "") -> Table:
    """Every step (of the lesson) and the libraries; below, what ran, the floors, versions, and where."""
    steps = [step for step in catalog.steps() if step.ladder == problems.preset(preset).ladder]
    rows = record.rows(preset)
    if not rows:
        raise UnmeasuredError(preset)
    note = f"`{preset}`: {ran(record.usual(preset), preset)}."
    for i, (name, one) in enumerate(record.floors(preset)):
        note += f" The {name} is {figures.milliseconds(one.floor_ms)} ms{'' if i else f', set by {one.floor_kind}'}."
    if versions := sorted({row.library for row in rows.values() if isinstance(row, PeerRow)}):
        note += f" Libraries: {'; '.join(versions)}."
    note += f" Median on one {machine(record, rows.values())}."
    return replace(rows_of(record, preset, steps, lesson), note=note)


def rows_of(record: Record, preset: str, steps: Sequence[Step], lesson: str = "") -> Table:
    """The steps that have rows, of one lesson or of all, and the libraries. Speed-ups count from the first step of
    the preset, and from the one before, or beside which an experiment is."""
    rows = record.rows(preset)
    first = next((step.name for step in steps if step.experiment or preset in catalog.presets(step)), "")
    previous, found = first, list[dict[str, str]]()
    for step in (step for step in steps if step.name in rows):
        before = step.predecessor or "" if step.experiment else previous
        if step.lesson == (lesson or step.lesson):
            older = bool(record.data.runs) and records.older(rows[step.name], step.name)  # without: just now
            name = aged(f"`{step.name}`", older)
            found.append({HEADER[0]: name, **cells(record, preset, step.name, first, before)})
        previous = previous if step.experiment else step.name
    for name, row in sorted(rows.items()):
        if isinstance(row, PeerRow):
            named = f"*{figures.spoken(name, row)}* ({row.layout})"
            found.append({HEADER[0]: named, **cells(record, preset, name, first)})
    known = {title for one in found for title in one}
    besides = sorted(title for title in known if title.startswith("× ") and title not in HEADER)
    columns = [*HEADER, *besides, *(title for title in OPTIONAL if title in known)]
    body = [[one.get(column, "") for column in columns] for one in found]
    operation = problems.LADDERS[problems.preset(preset).ladder].operation  # one of integers is no FLOP
    header = [column.replace("FLOP", operation) for column in columns]
    return Table(header, body, optional=(HEADER[2], *OPTIONAL))


def cells(record: Record, preset: str, name: str, first: str = "", previous: str = "") -> dict[str, str]:
    """Cells of a row, as far as known, by the titles of their columns. Speed-ups count from the rows ``first`` and
    ``previous``, if of the same size. Behind the time stand extents that most rows do not have."""
    row, usual = record.rows(preset)[name], record.usual(preset).shape()
    behind = " ".join(f"{key}={extent}" for key, extent in row.shape.items() if usual.get(key) != extent)
    median, low, high = map(figures.milliseconds, (row.timing.median_ms, row.timing.p20_ms, row.timing.p80_ms))
    found = {"ms": f"{median} ({behind})" if behind else median, "p20–p80": f"{low}–{high}"}
    for title, other in (("× first", first), ("× previous", previous)):
        if faster := figures.speed_up(record, preset, other, name):
            found[title] = f"{faster.value:.2f}"
    if derived := record.derive(preset, row):
        found["GFLOP/s"] = f"{derived.gflops:,.0f}"
        if not records.rounds_operands(name):
            found["% of floor"] = f"{derived.percent_of_floor:.1f}"
    if isinstance(row, StepRow):
        if row.prepare_ms is not None:
            found["prepare ms"] = figures.milliseconds(row.prepare_ms)
        if row.workspace_bytes:
            found["workspace MB"] = f"{row.workspace_bytes / 1e6:,.0f}"
        if beside := row.beside:
            found[f"× {beside.peer}"] = f"{beside.ratio:.2f} ({beside.ratio_p20:.2f}–{beside.ratio_p80:.2f})"
    return found


def across_presets(record: Record, *words: str) -> Table:
    """``PRESET ... STEP ...``: ms of the steps on each preset, of the FP32 libraries, and the floor."""
    presets, names = presets_in(words)
    if not all(record.rows(preset) for preset in presets):
        raise UnmeasuredError(" and ".join(presets))
    libraries = {n for p in presets for n, row in record.rows(p).items() if isinstance(row, PeerRow)}
    shown = [*names, *sorted(name for name in libraries if not records.rounds_operands(name))]
    rows, above = [], ""
    for name in shown:
        cells = [f"*{name}*" if name in libraries else f"`{name}`"]
        for preset in presets:
            timed = {step: row.timing.median_ms for step in names if (row := record.row(preset, step))}
            before = min(timed, key=timed.__getitem__, default="") if name in libraries else above
            older = records.older(record.row(preset, name), name)
            cells.append(aged(figures.time(record, preset, name) or "", older))
            cells.append(figures.speed_up(record, preset, before, name) or "")
            cells.append(figures.share(record, preset, name) or "")
        rows.append(cells)
        above = name
    rows.append(["*floor*", *(cell for p in presets for cell in (figures.floor(record, p) or "", "", "100"))])
    header = ["step", *(title for p in presets for title in (f"`{p}`, ms", "times as fast", "% of floor"))]
    note = "*Times as fast*: as the line above, and a library as the fastest step here."
    return Table(header, rows, note + _medians(record, presets, shown))


def across_layers(record: Record, step: str) -> Table:
    """A 3D convolution's step on each layer that it is timed on, beside the library."""
    found, short, rows = catalog.find(step), "cuDNN", []
    presets = [one for one in problems.timed_presets(found.ladder) if one in catalog.presets(found)]
    library = f"{short} {peers.precisions(problems.FIRST[found.ladder])[0]}"
    for preset in presets:
        mine, theirs = record.row(preset, step), record.row(preset, library)
        known = mine or theirs
        problem = record.problem(preset, known) if known else problems.preset(preset)
        matrices = math.prod(problem.extents("NOPQ")), *problem.extents("K"), problem.reduction
        ms, other = (figures.time(record, preset, name) for name in (step, library))
        faster = figures.beside(record, preset, step) or figures.speed_up(record, preset, library, step)
        rows.append({
            "layer": f"`{preset}`",
            "GEMM_M × GEMM_N × GEMM_K": " × ".join(f"{extent:,}" for extent in matrices),
            "ms": aged(ms, records.older(mine, step)) if ms else "not timed yet",
            "TFLOP/s": f"{problem.flops / ms.value / 1e9:.1f}" if ms else "",
            f"{short} ms": other or "",
            f"{short} TFLOP/s": f"{problem.flops / other.value / 1e9:.1f}" if other else "",
            f"% of {short}": f"**{100 * faster.value:.0f}**" if faster else "",
            "% of floor": figures.share(record, preset, step) or "",
            f"{short} computes by": "matrix product, by cuBLAS"
            if getattr(theirs, "layout", "") == peers.PRODUCT
            else figures.method(getattr(theirs, "kernels", None)),
        })  # fmt: skip
    return titled(rows, f"`{step}` beside {library}." + _medians(record, presets, {step, library}))


def ceilings(record: Record, *slugs: str) -> Table:
    """``[SLUG ...]``: the card and its two measured ceilings; further cards by their record's name."""
    if not record.ceilings:
        raise UnmeasuredError("the ceilings")
    found = [(one, one.ceilings) for one in (record, *map(records.other, slugs)) if one and one.ceilings]
    rows = [
        {
            "GPU": one.gpu_name, "multiprocessors": str(one.data.gpu.multiprocessors),
            "memory GB": f"{one.data.gpu.memory_bytes / 1e9:.0f}", "L2 MB": f"{one.data.gpu.l2_bytes / 1e6:.0f}",
            "copy GB/s": f"{held.copy_gbs:,.0f}", "FP32 multiply-add GFLOP/s": f"{held.fma_gflops:,.0f}",
        }
        for one, held in found
    ]  # fmt: skip
    return titled(rows, f"Measured on one {' and one '.join(machine(one, [held]) for one, held in found)}.")


# --- machine code ---


def compilers(record: Record, code: MachineCode) -> Table:
    """Each step's multiply loop by numba-cuda and by its successor, and its times by both on the record's card."""
    others = successor.load(records.RESULTS)
    if others is None or not code.steps:
        raise UnmeasuredError(str(successor.FILE))
    rows, missing = [], []
    for name, one in others.steps.items():
        both = list[list[str]]()
        for kernel in (records.main_kernel(code, name, one.preset), summaries.main_compiled(one.kernels)):
            if kernel and kernel.occupancy and (loop := kernel.hot):
                counts = loop.per_multiply_add(), loop.per_multiply_add(loop.count("IMAD"))
                each = ("–" if count is None else summaries.shown(count) for count in counts)
                both.append([str(kernel.registers), f"{kernel.occupancy.fraction:.0%}", *each])
        timed = record.data.compilers.get(one.preset, {}).get(name)
        times = (timed.times.first, timed.times.second) if timed else ()
        said = " → ".join(figures.milliseconds(time.median_ms) for time in times)
        said = aged(said, records.older(timed, name)) if timed else said
        if len(both) == 2:
            compiling = " → ".join(f"{seconds:.1f}" for seconds in one.seconds)
            rows.append([f"`{name}`", *map(" → ".join, zip(*both, strict=True)), compiling, said])
        else:
            missing.append(f"`{name}` ({one.reason})")
    header = ["step", "registers", "occupancy", "instructions per multiply-add", "of these `IMAD`", "compile s"]
    note = (
        "numba-cuda → its successor: the innermost multiply loop, compiled for compute capability "
        f"{successor.ARCHITECTURE} with {others.compiler} and {figures.versions(code.tools)}; seconds to the PTX of "
        "all kernels of a step, on one core, without what the first kernel of a process waits for. "
    )
    note += f"Not compiled: {'; '.join(missing)}." * bool(missing)
    if entries := [entry for steps in record.data.compilers.values() for entry in steps.values()]:
        versions = f"numba-cuda {record.run_of(entries[0]).packages['numba-cuda']} and {entries[0].successor}"
        note += f" Times are of each ladder's first preset, in turn, with {versions}: median on one"
        note += f" {machine(record, entries)}."
    return Table([*header, f"ms on {record.gpu_name}"], rows, note)


# --- counters, gains and what limits ---

# Columns of the counters' table: the word that chooses one, and its title.
COUNTERS = {
    "perfma": "instructions per multiply-add",
    "issue_pct": "issue slots %",
    "fma_pipe_pct": "FP32 pipe %",
    "tensor_pipe_pct": "tensor pipe %",
    "l1_pct": "L1 %",
    "l2_pct": "L2 %",
    "dram_pct": "DRAM %",
    "occupancy_pct": "occupancy %",
    "load_ratio": "sectors per load",
    "stall": "main stall",
}
_UNITS = ("issue_pct", "fma_pipe_pct", "tensor_pipe_pct", "l1_pct", "l2_pct", "dram_pct")


def profile(record: Record, *words: str) -> Table:
    """``PRESET ... STEP ... COUNTER ...``: hardware counters of each step's main kernel."""
    presets, rest = presets_in(words)
    chosen = [word for word in rest if word in COUNTERS]
    rows, source = [], ""
    for preset in presets:
        on = f", {preset}" if len(presets) > 1 else ""
        for name in [word for word in rest if word not in chosen]:
            entry = record.profile(preset, name)
            source = f" on {record.gpu_name}, {record.run_of(entry).date}" if entry else source
            found = {COUNTERS[key]: figures.counter(record, preset, name, key) or "" for key in chosen}
            rows.append({"step": aged(f"`{name}`{on}", records.older(entry, name)), **found})
    if not source:
        raise UnmeasuredError("the hardware's counters")
    where = " and ".join(f"`{preset}`" for preset in presets)
    return titled(rows, f"Hardware counters, {where}, read with Nsight Compute{source}.")


def worth(record: Record, *slugs: str) -> Table:
    """``[SLUG ...]``: every step beside the one it grew from, by gain, on further cards, too, by their records'
    names; and what warps waited for, before and now: the main stall, or the busiest unit where most were ready."""
    cards = [record, *(other for slug in slugs if (other := records.other(slug)))]
    rows, timed, lacking = [], [], []

    def factor(card: Record, preset: str, step: str, before: str) -> str:
        gain = figures.gain(card, preset, step)
        said = f"**{gain}: a loss**" if gain and gain.shown < 1 else gain or ""
        return aged(said, any(records.older(card.row(preset, name), name) for name in (before, step)))

    def limiter(preset: str, step: str) -> str:
        stall = figures.counter(record, preset, step, "stall") or ""
        if stall != "not selected":
            return stall
        busy = {key: figures.counter(record, preset, step, key) or "0" for key in _UNITS}
        unit = max(_UNITS, key=lambda key: float(busy[key]))
        return f"{COUNTERS[unit].removesuffix(' %')} {busy[unit]}%"

    for step, preset, gain in figures.worths(record):
        if gain is None:
            lacking.append(f"`{step.name}` on {preset}")
            continue
        timed.append((preset, step.name))
        before = figures.origin(step) or ""
        rows.append({
            "step and its idea": f"[`{step.name}`]({step.lesson}/{step.path.name}): {step.title.rstrip('.')}",
            "grew from": f"`{before}`",
            "problem": preset,
            **{f"× on {card.gpu_name}": factor(card, preset, step.name, before) for card in cards},
            "waited for": limiter(preset, before),
            "waits for": limiter(preset, step.name),
        })  # fmt: skip
    if not rows:
        raise UnmeasuredError("any step and the one it grew from")
    measured = ([row for one in timed if (row := card.row(*one))] for card in cards)
    places = " and one ".join(machine(card, its) for card, its in zip(cards, measured, strict=True) if its)
    note = f"Medians on one {places}; waits by the hardware counters of the {record.gpu_name}."
    note += f" Not measured beside the step they grew from: {', '.join(lacking)}." if lacking else ""
    return titled(rows, note, left=["step and its idea", "grew from", "problem", "waited for", "waits for"])


def presets() -> Table:
    """The timed presets, their work and least traffic."""
    ladders = {step.ladder for step in catalog.steps()}
    return titled([
        {
            "preset": f"`{name}`", "shape": str(one), "GFLOP or GOP": f"{one.flops / 1e9:.3g}",
            "least MB": f"{one.least_bytes / 1e6:,.0f}", "operations per byte": f"{one.intensity:.1f}",
        }
        for name, one in problems.PRESETS.items()
        if one.ladder in ladders and not name.startswith("tiny-")
    ])  # fmt: skip


# --- cells and notes ---


def aged(text: str, older: bool) -> str:
    """With the mark of what was measured on older code, if it was."""
    return f"{text} {OLDER}" if older else text


def ran(problem: Problem, preset: str) -> str:
    """The size that ran, and how large the preset's batch was to be."""
    asked = problems.preset(preset)
    return f"{problem}" + (f", N reduced from {getattr(asked, 'N', '')} to fit the card" if problem != asked else "")


def machine(record: Record, entries: Iterable[Entry]) -> str:
    """The card, its software in the latest run among those of the entries, one at least, and the days of these."""
    runs = sorted((record.run_of(one) for one in entries), key=lambda run: run.date)
    first, last = runs[0], runs[-1]
    days = f"on {last.date}" if first.date == last.date else f"from {first.date} to {last.date}"
    return f"{record.gpu_name} (driver {last.driver}, CUDA {last.cuda}) {days}"


def _medians(record: Record, presets: Iterable[str], names: Iterable[str]) -> str:
    """Where the rows of these names were timed; nothing without one."""
    shown = [row for preset in presets for name, row in record.rows(preset).items() if name in names]
    return f" Median on one {machine(record, shown)}." if shown else ""


# --- what commands print ---

_ONCE, _ON_GPU = "traced at one launch, on integers", "only the GPU ran it"  # right as far as that tells
_COLOURS = {"right": "green", **dict.fromkeys(("refused", "unjudged", _ONCE, _ON_GPU), "yellow")}


def steps(found: list[Step]) -> Table:
    """Steps in teaching order: name, what it does, and in which lesson."""
    header = ["step", "what it does", "lesson"]
    return Table(header, [[step.name, step.title, step.lesson[:2]] for step in found], left=header[1:2])


def checks(outcomes: list[Outcome]) -> Table:
    """What came of each step: at how many shapes it is right, and each shape at which it is not."""
    rows = list[list[Cell]]()
    for name in dict.fromkeys(outcome.step.name for outcome in outcomes):
        mine = [one for one in outcomes if one.step.name == name]
        right = [one for one in mine if one.status == "right"]
        unjudged = [one for one in mine if one.status == "unjudged" and not one.left_out]
        said = [(right, "right", "")]
        said += [([one], one.status, "") for one in mine if one.status not in ("right", "unjudged")]
        for one in right:
            if one.depth == "once":  # as its first launch took so long
                said.append(([one], _ONCE, ": more launches would take too long"))
            if one.unsought:
                said.append(([one], _ON_GPU, f": races and the like were not looked for: {one.unsought}"))
        said.append((unjudged, "unjudged", f": {unjudged[0].message}" if unjudged else ""))
        for shown, what, why in said:
            where = str(shown[0].problem) if len(shown) == 1 else f"{len(shown)} shapes"
            if shown:
                rows.append([name, where, Text.assemble((what, _COLOURS.get(what, "bold red")), why)])
    header = ["step", "shape", "verdict"]
    return Table(header, rows, left=header[1:])


def times(outcomes: list[Outcome], ceilings: Ceilings, gpu: str, slow: Collection[str] = ()) -> Table:
    """Times and rates of one preset's right outcomes; those of the ``slow`` steps have their clock behind them."""
    preset, record, clocks = str(outcomes[0].preset), records.nothing(), dict[str, str]()
    record.data.ceilings = ceilings
    rows = record.data.rows[preset] = dict[str, Row]()
    for one in outcomes:
        if one.status == "right":
            rows[one.step.name] = StepRow(
                source="", shape=one.problem.shape(), timing=one.time, prepare_ms=one.prepare_ms or None,
                workspace_bytes=0, precision=one.step.precision, beside=one.beside,
            )  # fmt: skip
            clocks[f"`{one.step.name}`"] = f" (at {one.time.sm_mhz} MHz)" if one.step.name in slow else ""
    size = record.usual(preset) if rows else outcomes[0].problem
    steps = [step for step in catalog.everything() if step.ladder == outcomes[0].step.ladder]
    found = rows_of(record, preset, steps)
    body = [[name, f"{ms}{clocks.get(str(name), '')}", *others] for name, ms, *others in found.rows]
    return replace(found, rows=body, title=f"{preset}: {size} on {gpu}")


def recorded(record: Record, preset: str, steps: list[Step]) -> Table:
    """A preset's rows for the given steps, and the libraries', as another card's record has them."""
    note = f"Median on one {machine(record, record.rows(preset).values())}."
    return replace(rows_of(record, preset, steps), title=f"{preset}, recorded on {record.gpu_name}", note=note)


def swept(title: str, points: list[Point], shipped: Tile) -> Table:
    """Tiles by time, the fastest first; then those that were not timed, with the reason."""
    rows = []
    for point in sorted(points, key=lambda point: point.median_ms or float("inf")):
        time = figures.milliseconds(point.median_ms) if point.median_ms else point.status
        note = "shipped" if point.tile == shipped else point.reason or ""
        rows.append([*(str(point.tile[name]) for name in shipped), time, note])
    return Table([*shipped, "ms", ""], rows, title=title, left=[""])


TABLES: dict[str, Callable[..., Table]] = {
    "ladder": ladder, "times": across_presets, "layers": across_layers, "ceilings": ceilings,
    "compilers": compilers, "profile": profile, "worth": worth, "problems": presets,
}  # fmt: skip
