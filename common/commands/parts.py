"""What a record holds beside times: what belongs to each part, whether it is current, and how it is measured."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rich.markup import escape

from common.catalog import cache, catalog, device, problems
from common.catalog.catalog import Step
from common.catalog.problems import Problem
from common.check import run
from common.commands import arguments, console
from common.commands.console import RIGHT, WRONG
from common.machine_code import successor
from common.records import records
from common.records.records import Record
from common.report import figures, pages, tables, traces
from common.report.table import Table
from common.timing import measuring, tasks, tools
from common.timing.timing import Compilers
from common.timing.tools import Profile, Sanitized
from common.trace import trace
from common.trace.state import TraceError

Pairs = list[tuple[Step, str]]


@dataclass(frozen=True)
class Part:
    """One part of a record."""

    items: Callable[[Record, list[Step], str | None], list[Any]]  # of these steps, on a preset; a step comes first
    holds: Callable[[Record, Any], bool]  # is the record's entry of an item there, and of the code as it is?
    measure: Callable[[list[Any], Record], int | None]  # writes items into the record; returns the exit code
    together: int = 1  # so many items at a time

    def run(self, record: Record, named: list[Step], preset: str | None) -> int:
        """Measure the items of the steps that are named; without any, those of all steps that the record lacks: some
        together, and alone if those failed. Says what stood in the way; returns the exit code."""
        items = self.items(record, named or _able(record), preset)
        items = [item for item in items if named or not self.holds(record, item)]
        groups, code = [items[at : at + self.together] for at in range(0, len(items), self.together)], RIGHT
        while groups:
            group = groups.pop(0)
            try:
                code = max(code, self.measure(group, record) or RIGHT)
            except tools.UnavailableError as error:  # for all of them
                console.blame(str(error))
                return WRONG
            except (run.DeviceError, tools.ToolError, TraceError, TimeoutError) as error:
                if len(group) > 1:
                    groups[:0] = [[one] for one in group]
                else:
                    console.blame(f"{' '.join([group[0][0].name, *map(str, group[0][1:])])}: {error}")
                    code = WRONG
        return code


def _able(record: Record) -> list[Step]:
    """Steps and experiments that the record's GPU can run."""
    return [step for step in catalog.everything() if step.runs_on(record.data.gpu.compute_capability)]


def _held(group: str, by_step: bool = False) -> Callable[[Record, tuple[Step, Any]], bool]:
    """Has the record's group, by preset and step or the other way, an entry of the step as it is?"""

    def holds(record: Record, item: tuple[Step, Any]) -> bool:
        step, at = item
        outer, inner = (step.name, str(at)) if by_step else (at, step.name)
        return records.holds(getattr(record.data, group).get(outer, {}).get(inner), step)

    return holds


def _epilogues(_: Record, steps: list[Step], preset: str | None) -> Pairs:
    told = catalog.settings().epilogues
    found = [(catalog.find(one.step), one.preset) for one in told if preset in (None, one.preset)]
    return [(step, at) for step, at in found if step in steps]


def _time_epilogues(pairs: Pairs, record: Record) -> None:
    """Time steps on presets with the epilogues of a module, fused and apart."""
    modules = {(one.step, one.preset): one.ways for one in catalog.settings().epilogues}
    for step, preset in pairs:
        given = str(step.path), step.ladder, problems.preset(preset).shape(), modules[step.name, preset]
        entry = run.ask(f"{step.name} on {preset}: the epilogues could not be timed", tasks.epilogues, *given)
        record.keep("epilogues", preset, {step.name: entry})
        found = pages.table("epilogues", record, step.name, preset)
        console.say().print(replace(found, title=f"{step.name} on {preset}"))


def _accuracy(_: Record, steps: list[Step], __: str | None) -> list[tuple[Step]]:
    return [(step,) for step in map(catalog.find, catalog.settings().accuracy) if step in steps]


def _has_accuracy(record: Record, _: tuple[Step]) -> bool:
    """Of all steps or of none: they are measured on the same operands."""
    return records.errors_hold(record, [step for (step,) in _accuracy(record, _able(record), None)])


def _measure_accuracy(items: list[tuple[Step]], record: Record) -> None:
    """Measure the errors of the steps' products over K."""
    files = {step.name: str(step.path) for (step,) in items if not run.beyond(step)}
    for operands, found in run.ask("the errors could not be measured", tasks.accuracy, files).items():
        record.keep("accuracy", operands, found)
    title = "errors over the results' root mean square, 10⁻⁶"
    for kind, said in (("accuracy", title), ("unfit", "operands beyond some precisions")):
        console.say().print(replace(pages.table(kind, record), title=said))


def _counters(record: Record, steps: list[Step], preset: str | None) -> Pairs:
    """Where no preset is named: a step's usual one; of several each ladder's default, and what the record has."""
    preset = arguments.preset_of(steps, preset)
    others = [(s, at) for s in steps for at in catalog.presets(s) if preset is None and record.profile(at, s.name)]
    return list(dict.fromkeys((*arguments.pairs(steps, preset), *others)))


def _profile(pairs: Pairs, record: Record) -> None:
    """Count with the hardware's counters."""
    for one, kernels in measuring.profile_steps(pairs):
        found = Profile(source=one.source or "", kernels=kernels, shape=one.problem.shape())
        record.keep("profile", str(one.preset), {one.step.name: found})
        table = pages.table("profile", record, str(one.preset), one.step.name, *tables.COUNTERS)
        turned = [list(cells) for cells in zip(table.header, *table.rows, strict=True)]  # ten columns are too many
        console.say().print(Table(turned[0], turned[1:], table.note))


def _agree(pairs: list[tuple[Step, Problem]], record: Record) -> None:
    """Count what the tracer counts with the hardware's counters, too."""
    for step, problem, entry in console.progress("trace", traces.count_both(pairs), pairs):
        record.keep("agreement", step.name, {str(problem): entry})
        console.say().print(traces.agreement(record, step.name))


def _is_sanitized(record: Record, item: tuple[Step]) -> bool:
    """Has every tool of compute-sanitizer seen the step as it is?"""
    seen = record.data.sanitizer.get(item[0].name, {})
    return all(records.holds(seen.get(tool), item[0]) for tool in tools.TOOLS)


def _sanitize(items: list[tuple[Step]], record: Record) -> int:
    """See what compute-sanitizer's tools find in the steps."""
    steps = [step for (step,) in items]
    expected = range(len(tools.TOOLS) * len(steps))
    found = list(console.progress("sanitize", measuring.sanitize_steps(steps), expected))
    console.tell(*(f"{step.name}: {tool}: {escape(report)}" for tool, step, count, report in found if count))
    for step in steps:
        code = cache.code(step.path)
        seen = {tool: Sanitized(source=code, errors=count) for tool, one, count, _ in found if one == step}
        record.keep("sanitizer", step.name, seen)
    return WRONG if any(count for _, _, count, _ in found) else RIGHT


def _compilers(_: Record, steps: list[Step], preset: str | None) -> Pairs:
    """The steps that both compile, by the record of the successor's, on their ladders' defaults."""
    known = successor.load(records.RESULTS)
    both = {name for name, one in known.steps.items() if one.kernels} if known else set()
    found = [step for step in steps if step.name in both]
    return arguments.pairs(found, preset) if found else []


def _time_compilers(pairs: Pairs, record: Record) -> None:
    """Time each pair of step and preset by both compilers, in turn."""
    for one in console.progress("time", measuring.time_compilers(pairs), pairs):
        times = (one.pairs or {})[device.NUMBA_CUDA]
        entry = Compilers(
            source=cache.code(one.step.path), shape=one.problem.shape(), times=times,
            successor=f"{successor.PACKAGE} {successor.version()}",
        )  # fmt: skip
        record.keep("compilers", str(one.preset), {one.step.name: entry})
        first, second = (figures.milliseconds(each.median_ms) for each in (times.first, times.second))
        console.tell(f"{one.step.name} on {one.preset}: {first} ms by numba-cuda, {second} ms by its successor")


PARTS = {
    "epilogues": Part(_epilogues, _held("epilogues"), _time_epilogues),
    "accuracy": Part(_accuracy, _has_accuracy, _measure_accuracy, together=1000),
    "counters": Part(_counters, _held("profile"), _profile, together=4),  # a profiled process takes seconds to start
    "sanitizer": Part(lambda _, steps, __: [(step,) for step in steps], _is_sanitized, _sanitize, together=4),
    "compilers": Part(_compilers, _held("compilers"), _time_compilers),
    "agreement": Part(
        lambda _, steps, __: [(s, at) for s in steps for at in trace.shapes(s)], _held("agreement", True), _agree, 4
    ),
}
