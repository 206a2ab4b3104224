"""Tables that commands print: of checks, times, traces, compiled kernels. A table is printed as it is."""

from __future__ import annotations

import statistics
from collections.abc import Collection
from dataclasses import replace

from rich.text import Text

from common.catalog.catalog import Step
from common.catalog.exercises import Exercise, State
from common.catalog.problems import Problem
from common.jobs.messages import Tile
from common.jobs.run import Outcome
from common.records import current, records
from common.records.entries import Point
from common.records.records import Record
from common.report import figures, kinds, speeds
from common.report.table import Cell, Table
from common.timing import ceilings as measured
from common.timing import tools
from common.timing.ceilings import Ceilings

_COLOURS = {"right": "green", "refused": "yellow", "unjudged": "yellow"}
_SHIPPED = "shipped ms"
_OPTIONAL = (speeds.SPREAD, "workspace MB", _SHIPPED, "prepare ms", "GB/s")
# A check that is less than thorough, as its first launch took so long.
_DEPTHS = {
    "once": "traced at one launch, on integers", "usual": "traced at three launches, on integers and normals",
}  # fmt: skip


def steps(found: list[Step]) -> Table:
    """Steps in teaching order: name, what it does, and in which lesson."""
    header = ["step", "what it does", "lesson"]
    return Table(header, [[step.name, step.title, step.lesson[:2]] for step in found], left=header[1:2])


def checks(outcomes: list[Outcome]) -> Table:
    """What came of each step: at how many shapes it is right, and each shape at which it is not."""
    rows: list[list[Cell]] = []
    for name in dict.fromkeys(outcome.step.name for outcome in outcomes):
        mine = [one for one in outcomes if one.step.name == name]
        right = [one for one in mine if one.status == "right"]
        unjudged = [one for one in mine if one.status == "unjudged" and not one.left_out]
        if right:
            rows.append([name, _where(right), _status(right[0])])
        rows += [[name, str(o.problem), _status(o)] for o in mine if o.status not in ("right", "unjudged")]
        for one in right:
            if (depth := one.depth) in _DEPTHS:
                rows.append([name, str(one.problem), _warned(_DEPTHS[depth], "more launches would take too long")])
            if why := one.unsought:
                said = f"races and the like were not looked for: {why}"
                rows.append([name, str(one.problem), _warned("only the GPU ran it", said)])
        if unjudged:
            rows.append([name, _where(unjudged), _warned("unjudged", str(unjudged[0].message))])
    header = ["step", "shape", "verdict"]
    return Table(header, rows, left=header[1:])


def _where(outcomes: list[Outcome]) -> str:
    return str(outcomes[0].problem) if len(outcomes) == 1 else f"{len(outcomes)} shapes"


def _status(outcome: Outcome) -> Text:
    return Text(outcome.status, style=_COLOURS.get(outcome.status, "bold red"))


def _warned(what: str, why: str) -> Text:
    return Text.assemble((what, "yellow"), f": {why}")


def times(outcomes: list[Outcome], ceilings: Ceilings, gpu: str, slow: Collection[str] = ()) -> Table:
    """Times and rates of one preset's outcomes, in their order; those of the ``slow`` steps have a note."""
    usual = statistics.mode([one.problem for one in outcomes if one.status == "right"] or [outcomes[0].problem])
    timed = {outcome.step.name: outcome for outcome in outcomes if outcome.status == "right"}
    shipped = _shipped(gpu)
    apart: set[str] = set()

    def ms_of(name: str, problem: Problem) -> float | None:
        """A step's time in this run, if it ran at the same size."""
        one = timed.get(name)
        if one and one.problem.flops == problem.flops:
            return one.time.median_ms
        apart.add(name)
        return None

    def cells(outcome: Outcome) -> dict[str, str]:
        timing, step = outcome.time, outcome.step
        befores = speeds.befores(step, outcome.preset) or [step.name]
        first, previous = (ms_of(name, outcome.problem) for name in (befores[0], befores[-1]))
        by = measured.instruction(step.requires)
        derived = records.derive(outcome.problem, timing.median_ms, ceilings, step.precision, by)
        note = speeds.note(outcome.problem, usual, timing if step.name in slow else None)
        found = speeds.cells(
            timing, derived, first, previous, outcome.prepare_ms or None, beside=outcome.beside, note=note
        )
        there = shipped.row(str(outcome.preset), step.name) if shipped else None
        if there and there.shape == outcome.problem.shape() and not current.older(there, step.name):
            found[_SHIPPED] = figures.milliseconds(there.timing.median_ms)
        return found

    found = {name: cells(outcome) for name, outcome in timed.items()}
    header = [*speeds.HEADER, *speeds.further(found.values()), "prepare ms", *([_SHIPPED] if shipped else [])]
    body: list[list[Cell]] = []
    for outcome in outcomes:
        name = outcome.step.name
        mine = found.get(name, {}) if outcome.status == "right" else {"ms": _status(outcome)}
        body.append([f"`{name}`", *(mine.get(title, "") for title in header[1:])])
    notes = [f"No ratio to {', '.join(sorted(apart))}: not timed in this run at the same size."] if apart else []
    notes += [f"Shipped: the record of {shipped.gpu_name}."] if shipped else []
    title = f"{outcomes[0].preset}: {usual} on {gpu}"
    return Table(header, body, "\n".join(notes), title, optional=_OPTIONAL)


def _shipped(gpu: str) -> Record | None:
    """The shipped record that stands beside one's own times: of the same card, or the reference."""
    same = (record for record in records.all_records(records.RESULTS) if record.gpu_name == gpu)
    return next(same, None) or records.other(records.REFERENCE_GPU)


def recorded(record: Record, preset: str, steps: list[Step]) -> Table:
    """A preset's rows for the given steps, and the libraries', as another card's record has them."""
    found = kinds.rows_of(record, preset, steps)
    days = sorted({record.run_of(row).date for row in record.rows(preset).values()})
    said = f"Measured from {days[0]} to {days[-1]}: a ratio of two days' rows holds what else changed."
    title = f"{preset}, recorded on {record.title}"
    return replace(found, title=title, note=said if len(days) > 1 else "", optional=_OPTIONAL)


def compiled(outcomes: list[Outcome], architectures: tuple[str, ...]) -> Table:
    """What was compiled for which architectures."""
    rows: list[list[Cell]] = []
    for outcome in outcomes:
        built = outcome.kernels
        targets = dict.fromkeys(item["architecture"] for item in built) or architectures
        done: Cell = ", ".join(targets) if outcome.status == "right" else _status(outcome)
        rows.append([outcome.step.name, ", ".join(sorted({item["kernel"] for item in built})), done])
    header = ["step", "kernels", "compiled for"]
    return Table(header, rows, left=header[1:])


def counters(title: str, sentences: list[tuple[str, str, str]]) -> Table:
    """A profiled kernel's counters, each with what it says."""
    return Table(["", " ", "  "], sentences, title=title, left=["  "])


def swept(title: str, points: list[Point], shipped: Tile) -> Table:
    """Tiles by time, the fastest first; then those that were not timed, with the reason."""
    rows = []
    for point in sorted(points, key=lambda point: point.median_ms or float("inf")):
        time = figures.milliseconds(point.median_ms) if point.median_ms else point.status
        note = "shipped" if point.tile == shipped else point.reason or ""
        rows.append([*(str(point.tile[name]) for name in shipped), time, note])
    return Table([*shipped, "ms", ""], rows, title=title, left=[""])


def sanitized(found: list[tuple[str, Step, int, str]]) -> Table:
    """Errors by step and tool."""
    counts = {(tool, step.name): count for tool, step, count, _ in found}
    names = dict.fromkeys(step.name for _, step, _, _ in found)
    rows = [[name, *(str(counts[tool, name]) for tool in tools.TOOLS)] for name in names]
    return Table(["step", *tools.TOOLS], rows, "; ".join(f"{t}: {said}" for t, said in tools.TOOLS.items()))


def failed(found: list[tuple[str, str, str]]) -> Table:
    """What could not be measured, and why: its part, its names, the reason."""
    header = ["part", "failed", "why"]
    return Table(header, found, left=header[1:])


def progress(found: list[Exercise], state: State) -> Table:
    """Exercises, hints used, and what has passed."""
    rows: list[list[Cell]] = [
        [
            one.number, one.title, one.kind, f"{state.hints(one)} of {len(one.hints)}",
            Text("passed" if state.passed(one) else "", style="green"),
        ]
        for one in found
    ]  # fmt: skip
    return Table(["", "exercise", "kind", "hints", "done"], rows, left=["exercise", "kind", "hints", "done"])
