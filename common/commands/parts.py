"""What a GPU's record holds beside times: what of it is missing or of older code, and how that is measured."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from common.catalog import catalog, lessontext
from common.catalog.catalog import Step
from common.catalog.problems import Problem
from common.commands import arguments, console, profiling
from common.commands.arguments import Opened
from common.jobs import run
from common.records import current, records
from common.records.records import Record
from common.report import agreement
from common.timing import tools

COMMAND_SECONDS = 600.0  # for a lesson's own command


@dataclass(frozen=True)
class Part:
    """One part of a record.

    ``missing``   items that are missing or of older code, each a tuple that begins with what has a name
    ``measure``   measures such items and writes them into the opened record
    ``together``  so many items at a time
    """

    missing: Callable[[Record], list[Any]]
    measure: Callable[[list[Any], Opened], object]
    together: int = 1


@dataclass(frozen=True)
class Entry:
    """An entry of a lesson's own record, by its name, and the ``command`` of the lesson that writes it.

    ``module``  ``load``, ``change`` and ``holds``: the record
    """

    name: str
    lesson: str
    command: str
    module: Any


def named(item: tuple[Any, ...]) -> str:
    """An item in words: ``STEP PRESET``."""
    first, *at = item
    return " ".join([first.name, *map(str, at)])


def _able(record: Record) -> list[Step]:
    """Steps and experiments that the record's GPU can run."""
    return [step for step in catalog.everything() if step.runs_on(record.data.gpu.compute_capability)]


def rows(record: Record, room_bytes: int | None = None) -> list[tuple[Step, str]]:
    """Steps and presets whose row is missing or of older code; on a card with room for so many bytes, of another
    driver or other packages, too."""
    pairs = arguments.pairs(_able(record), None, every_preset=True)
    if room_bytes is None:
        return [(step, preset) for step, preset in pairs if not current.holds(record.row(preset, step.name), step)]
    return [(step, preset) for step, preset in pairs if not current.row(record, step, preset, room_bytes)]


def _epilogues(record: Record) -> list[tuple[Step, str, str]]:
    found, able = record.data.epilogues, _able(record)
    named = [(catalog.find(name), preset, ways) for name, preset, ways in lessontext.epilogues(catalog.LESSONS)]
    return [
        (step, preset, ways)
        for step, preset, ways in named
        if step in able
        and (step.name not in found.get(preset, {}) or not current.epilogues(found[preset][step.name], step.name))
    ]


def _accuracy(record: Record) -> list[tuple[Step]]:
    """All of them or none: they are measured on the same operands."""
    able = _able(record)
    steps = [step for step in map(catalog.find, lessontext.accuracy(catalog.LESSONS)) if step in able]
    return [] if current.errors(record, steps) else [(step,) for step in steps]


def _counters(record: Record) -> list[tuple[Step, str]]:
    """On each ladder's default preset; on others where they were read before."""
    steps = _able(record)
    others = [(s, preset) for s in steps for preset in catalog.presets(s) if record.profile(preset, s.name)]
    pairs = dict.fromkeys((*arguments.pairs(steps, None, every_preset=False), *others))
    return [(step, preset) for step, preset in pairs if not current.holds(record.profile(preset, step.name), step)]


def _unsanitized(record: Record) -> list[tuple[Step]]:
    """Steps that some tool of compute-sanitizer has not seen as they are."""
    seen = record.data.sanitizer
    return [
        (step,)
        for step in _able(record)
        if not all(current.holds(seen.get(step.name, {}).get(tool), step) for tool in tools.TOOLS)
    ]


def _sanitize(items: list[tuple[Step]], opened: Opened) -> None:
    profiling.sanitize([step for (step,) in items], opened)


def _unagreed(record: Record) -> list[tuple[Step, Problem]]:
    seen, pairs = record.data.agreement, agreement.cases(_able(record))
    return [(step, at) for step, at in pairs if not current.holds(seen.get(step.name, {}).get(str(at)), step)]


def _agree(pairs: list[tuple[Step, Problem]], opened: Opened) -> None:
    record, key = opened
    for step, problem, entry in console.quietly("trace", agreement.refresh(pairs), pairs):
        record.keep("agreement", step.name, {str(problem): entry}, key)


def _untrained(record: Record) -> list[tuple[Entry]]:
    network = lessontext.training(catalog.LESSONS)
    if network is None:
        return []
    folder, declared = network
    module = import_module(f"{catalog.LESSONS.name}.{folder.name}.{declared.code}.record")
    held = module.load(record.slug, record.folder)
    entries = [Entry(name, folder.name, command, module) for name, command in declared.commands.items()]
    return [(entry,) for entry in entries if not module.holds(getattr(held, entry.name, None))]


def _train(entries: list[tuple[Entry]], opened: Opened) -> None:
    """Run the lesson's command, which writes the user's entry. Raises DeviceError with what it says if it fails."""
    for (entry,) in entries:
        words = [sys.executable, "-m", f"{catalog.LESSONS.name}.{entry.lesson}", entry.command]
        console.say().print(f"python {' '.join(words[1:])}", markup=False)
        try:
            done = subprocess.run(
                words, cwd=catalog.ROOT, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_SECONDS,
                encoding="utf-8", errors="replace",
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{entry.command} was not done within {COMMAND_SECONDS:.0f} s") from None
        if done.returncode:
            said = " ".join(done.stderr.split())[-300:].removeprefix("error: ")
            raise run.DeviceError(said or f"{entry.command} ended with exit code {done.returncode}")
        found = entry.module.load(opened[0].slug)
        if found and opened[0].folder != records.OWN:
            entry.module.change(found.gpu, getattr(found, entry.name), opened[0].folder)


PARTS = {
    "epilogues": Part(_epilogues, profiling.epilogues),
    "accuracy": Part(_accuracy, profiling.accuracy, together=1000),
    "counters": Part(_counters, profiling.profile, together=4),  # a profiled process takes seconds to start
    "sanitizer": Part(_unsanitized, _sanitize, together=4),
    "agreement": Part(_unagreed, _agree, together=4),
    "training": Part(_untrained, _train),
}
