"""The command ``renew``: what this GPU's record lacks, or has of older code, is measured, part by part.

It may be ended at any time: what is measured is kept, lesson by lesson, and the next run goes on with the rest.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.markup import escape

from common.book import catalog, device, lessontext
from common.book.catalog import Step
from common.book.problems import Problem
from common.commands import arguments, choosing, console, measuring
from common.commands.choosing import Opened
from common.commands.console import RIGHT, WRONG
from common.jobs import run
from common.measure import profiler, sanitizer
from common.microscope import lanes
from common.report import agreement, current, records
from common.report.records import Record

ROWS = "rows"  # of steps and libraries, and the ceilings
_FAILURES = (run.DeviceError, profiler.ProfileError, sanitizer.SanitizerError, lanes.TraceError)


@dataclass(frozen=True)
class Part:
    """Something that a record holds: what of it is missing or of older code, and how such is measured.

    Each of it is a tuple that begins with its step. ``apart``: each lesson's is measured, and kept, for itself.
    """

    missing: Callable[[Record], list[Any]]
    measure: Callable[[list[Any], Opened], int]
    apart: bool = True


def commands(known: arguments.Commands) -> None:
    """Add this command to those that are known."""
    sub = known.add(
        "renew", _renew, "measure what this GPU's record lacks or has of older code; may be ended any time"
    )
    names = ", ".join((ROWS, *PARTS))
    sub.add_argument("parts", nargs="*", metavar="PART", help=f"of these only: {names} (default: all)")
    sub.add_argument(
        "--list", action="store_true", help="name what would be measured; without a GPU, for the shipped record"
    )


def _renew(options: argparse.Namespace) -> int:
    known = (ROWS, *PARTS)
    for name in options.parts:
        if name not in known:
            raise ValueError(f"PART {name!r}: must be one of {', '.join(known)}")
    names = [name for name in known if not options.parts or name in options.parts]
    if options.list:
        return _list(names)
    device.require_gpu("renewing a record")
    code = RIGHT
    if ROWS in names:
        console.say().rule(ROWS)
        code = measuring.bench(measuring.Bench(catalog.everything(), *run.inspect_device(), fresh=False))
    opened = choosing.open_record()
    for name in names:
        if name != ROWS:
            console.say().rule(name)
            code = max(code, _measure(PARTS[name], opened))
    return code


def _measure(part: Part, opened: Opened) -> int:
    """What is missing, lesson by lesson; what fails is told, and costs only its lesson."""
    code = RIGHT
    for _, batch in itertools.groupby(part.missing(opened[0]), lambda one: part.apart and one[0].lesson):
        try:
            code = max(code, part.measure(list(batch), opened))
        except _FAILURES as error:
            console.say().print(f"[yellow]{escape(str(error))}[/]")
            code = WRONG
    return code


def _list(names: list[str]) -> int:
    """Name what is missing of each part, or of older code."""
    if device.gpu_count():
        record = choosing.open_record()[0]
    else:
        record = Record.load(records.RESULTS / f"{records.REFERENCE_GPU}.json")
    say = console.say()
    say.print(f"To be measured for the record of {record.gpu_name}:")
    for name in names:
        missing = _rows(record) if name == ROWS else PARTS[name].missing(record)
        told = [" ".join([step.name, *map(str, at)]) for step, *at in missing]
        say.print(f"{name}: {', '.join(told) or 'nothing'}", soft_wrap=True)
    return RIGHT


def _able(record: Record) -> list[Step]:
    """Steps and experiments that the record's GPU can run, by lesson."""
    capability = record.data.gpu.compute_capability
    steps = (step for step in catalog.everything() if step.runs_on(capability))
    return sorted(steps, key=lambda step: step.lesson)


def _rows(record: Record) -> list[tuple[Step, str]]:
    pairs = choosing.pairs(_able(record), None, every_preset=True)
    return [(step, preset) for step, preset in pairs if not current.timed(record, preset, step)]


def _epilogues(record: Record) -> list[tuple[Step, str, str]]:
    found = record.data.epilogues
    named = [(catalog.find(name), preset, ways) for name, preset, ways in lessontext.epilogues(catalog.LESSONS)]
    return [
        (step, preset, ways)
        for step, preset, ways in named
        if step.name not in found.get(preset, {}) or not current.epilogues(found[preset][step.name], step.name)
    ]


def _errors(record: Record) -> list[tuple[Step]]:
    """All of them or none: they are measured on the same operands."""
    steps = [step for step in map(catalog.find, lessontext.accuracy(catalog.LESSONS)) if step in _able(record)]
    return [] if current.errors(record, steps) else [(step,) for step in steps]


def _counters(record: Record) -> list[tuple[Step, str]]:
    pairs = choosing.pairs(_able(record), None, every_preset=False)
    held = current.counters(record, pairs)
    return [pair for pair in pairs if pair not in held]


def _sanitized(record: Record) -> list[tuple[Step]]:
    held = current.sanitized(record, _able(record))
    return [(step,) for step in _able(record) if step not in held]


def _agreed(record: Record) -> list[tuple[Step, Problem]]:
    pairs = agreement.cases(_able(record))
    held = current.agreed(record, pairs)
    return [pair for pair in pairs if pair not in held]


def _agree(pairs: list[tuple[Step, Problem]], opened: Opened) -> int:
    record, key = opened
    for step, problem, entry in console.quietly("trace", agreement.refresh(pairs), pairs):
        record.put_agreement(step.name, str(problem), entry, key)
    return RIGHT


PARTS = {
    "epilogues": Part(
        _epilogues, lambda all, to: measuring.epilogues([(step.name, preset, ways) for step, preset, ways in all], to)
    ),
    "errors": Part(_errors, lambda _, to: measuring.accuracy(to), apart=False),
    "counters": Part(_counters, measuring.profile),
    "sanitizer": Part(_sanitized, lambda all, to: measuring.sanitize([step for (step,) in all], to)),
    "agreement": Part(_agreed, _agree),
}
