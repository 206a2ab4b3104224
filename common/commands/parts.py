"""What a record holds beside times: what belongs to each part, whether it is current, and how it is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from msgspec.structs import asdict
from rich.markup import escape

from common.catalog import catalog, lessontext
from common.catalog.catalog import Step
from common.catalog.problems import Problem
from common.commands import arguments, console
from common.commands.arguments import Opened
from common.commands.console import RIGHT, WRONG
from common.machine_code import successor
from common.records import current, records
from common.records.entries import Profile
from common.records.records import Record
from common.report import agreement, pages, tables
from common.timing import measuring, tools


@dataclass(frozen=True)
class Part:
    """One part of a record.

    ``items``     what of these steps belongs to it, on a preset if one is named: tuples that begin with what is named
    ``holds``     is the record's entry of an item there, and of the code as it is now?
    ``measure``   measures items and writes them into the opened record; returns the exit code
    ``together``  so many items at a time
    """

    items: Callable[[Record, list[Step], str | None], list[Any]]
    holds: Callable[[Record, Any], bool]
    measure: Callable[[list[Any], Opened], int]
    together: int = 1

    def chosen(self, record: Record, named: list[Step], preset: str | None) -> list[Any]:
        """The items of the steps that are named; without any, those of all steps that the record lacks."""
        if named:
            return self.items(record, named, preset)
        return [item for item in self.items(record, _able(record), preset) if not self.holds(record, item)]


def _able(record: Record) -> list[Step]:
    """Steps and experiments that the record's GPU can run."""
    return [step for step in catalog.everything() if step.runs_on(record.data.gpu.compute_capability)]


def named(item: tuple[Any, ...]) -> str:
    """An item in words: ``STEP PRESET``."""
    first, *at = item
    return " ".join([first.name, *map(str, at)])


def _epilogues(_: Record, steps: list[Step], preset: str | None) -> list[tuple[Step, str, str]]:
    found = [(catalog.find(one.step), one.preset, one.ways) for one in lessontext.read(catalog.LESSONS).epilogues]
    return [entry for entry in found if entry[0] in steps and preset in (None, entry[1])]


def _has_epilogue(record: Record, item: tuple[Step, str, str]) -> bool:
    step, preset, _ = item
    found = record.data.epilogues.get(preset, {})
    return step.name in found and current.epilogues(found[step.name], step.name)


def _time_epilogues(items: list[tuple[Step, str, str]], opened: Opened) -> int:
    """Time steps on presets with the epilogues of a module, fused and apart; record and print the times."""
    record, key = opened
    say = console.say()
    for step, preset, ways in items:
        for _, _, result in measuring.measure_epilogues([(step.name, preset, ways)]):
            records.record_epilogues(record, key, step, preset, ways, result)
            found = pages.table("epilogues", record, step.name, preset)
            say.print(replace(found, title=f"{step.name} on {preset}"))
    console.say_libraries()
    return RIGHT


def _accuracy(_: Record, steps: list[Step], __: str | None) -> list[tuple[Step]]:
    return [(step,) for step in map(catalog.find, lessontext.read(catalog.LESSONS).accuracy) if step in steps]


def _has_accuracy(record: Record, _: tuple[Step]) -> bool:
    """Of all steps or of none: they are measured on the same operands."""
    return current.errors(record, [step for (step,) in _accuracy(record, _able(record), None)])


def _measure_accuracy(items: list[tuple[Step]], opened: Opened) -> int:
    """Measure the errors of the steps' products over K, record and print them."""
    record, key = opened
    records.record_accuracy(record, key, measuring.measure_accuracy([step for (step,) in items]))
    say = console.say()
    title = "errors over the results' root mean square, 10⁻⁶"
    say.print(replace(pages.table("accuracy", record), title=title))
    say.print(replace(pages.table("unfit", record), title="operands beyond some precisions"))
    console.say_libraries()
    return RIGHT


def _counters(record: Record, steps: list[Step], preset: str | None) -> list[tuple[Step, str]]:
    """On the preset that is named, or on that which shows a single step; else on each ladder's default, and on others
    where they were read before."""
    preset = arguments.preset_of(steps, preset)
    pairs = arguments.pairs(steps, preset, every_preset=False)
    others = [(s, at) for s in steps for at in catalog.presets(s) if preset is None and record.profile(at, s.name)]
    return list(dict.fromkeys((*pairs, *others)))


def _has_counters(record: Record, item: tuple[Step, str]) -> bool:
    step, preset = item
    return current.holds(record.profile(preset, step.name), step)


def _profile(pairs: list[tuple[Step, str]], opened: Opened) -> int:
    """Print the hardware's counters of each pair of step and preset, and record them."""
    record, key = opened
    for one in measuring.profile_steps(pairs):
        for entry in one.kernels:
            title = f"{one.step.name} on {one.preset}: {entry.kernel}"
            console.say().print(tables.counters(title, tools.sentences(entry)))
        found = Profile(**asdict(one.code), kernels=one.kernels, shape=one.shape)
        record.keep("profile", one.preset, {one.step.name: found}, key)
    return RIGHT


def _agreement(_: Record, steps: list[Step], __: str | None) -> list[tuple[Step, Problem]]:
    return agreement.cases(steps)


def _agrees(record: Record, item: tuple[Step, Problem]) -> bool:
    step, at = item
    return current.holds(record.data.agreement.get(step.name, {}).get(str(at)), step)


def _agree(pairs: list[tuple[Step, Problem]], opened: Opened) -> int:
    record, key = opened
    for step, problem, entry in console.quietly("trace", agreement.refresh(pairs), pairs):
        record.keep("agreement", step.name, {str(problem): entry}, key)
    return RIGHT


def _is_sanitized(record: Record, item: tuple[Step]) -> bool:
    """Has every tool of compute-sanitizer seen the step as it is?"""
    seen = record.data.sanitizer.get(item[0].name, {})
    return all(current.holds(seen.get(tool), item[0]) for tool in tools.TOOLS)


def _sanitize(items: list[tuple[Step]], opened: Opened) -> int:
    """Print what compute-sanitizer's tools find in the steps, and record it."""
    record, key = opened
    steps = [step for (step,) in items]
    expected = [step for _ in tools.TOOLS for step in steps]
    found = list(console.progress("sanitize", measuring.sanitize_steps(steps), expected, tables.sanitized_line))
    say = console.say()
    say.print(tables.sanitized(found))
    for tool, step, count, report in found:
        if count:
            say.print(f"{step.name}: {tool}: {escape(report)}", soft_wrap=True)
    for step in steps:
        errors = {tool: count for tool, one, count, _ in found if one == step}
        records.record_sanitizer(record, key, step, errors)
    return WRONG if any(count for _, _, count, _ in found) else RIGHT


def _compilers(_: Record, steps: list[Step], preset: str | None) -> list[tuple[Step, str]]:
    """The steps that both compile, by the record of the successor's, on their ladders' defaults."""
    known = successor.load(records.RESULTS)
    both = {name for name, one in known.steps.items() if one.kernels} if known else set()
    found = [step for step in steps if step.name in both]
    return arguments.pairs(found, preset, every_preset=False) if found else []


def _by_both(record: Record, item: tuple[Step, str]) -> bool:
    step, preset = item
    return current.holds(record.data.compilers.get(preset, {}).get(step.name), step)


def _time_compilers(pairs: list[tuple[Step, str]], opened: Opened) -> int:
    """Time each pair of step and preset by both compilers, in turn; print the times and record them."""
    record, key = opened
    for one in console.progress("time", measuring.time_compilers(pairs), pairs, tables.by_both_line):
        records.record_compilers(record, key, one, f"{successor.PACKAGE} {successor.version()}")
    return RIGHT


PARTS = {
    "epilogues": Part(_epilogues, _has_epilogue, _time_epilogues),
    "accuracy": Part(_accuracy, _has_accuracy, _measure_accuracy, together=1000),
    "counters": Part(_counters, _has_counters, _profile, together=4),  # a profiled process takes seconds to start
    "sanitizer": Part(lambda _, steps, __: [(step,) for step in steps], _is_sanitized, _sanitize, together=4),
    "compilers": Part(_compilers, _by_both, _time_compilers),
    "agreement": Part(_agreement, _agrees, _agree, together=4),
}
