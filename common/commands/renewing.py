"""The command ``renew``: what this GPU's record lacks, or has of older code, is measured, part by part.

It may be ended at any time: what is measured is kept as it comes, and the next run goes on with the rest. What fails
costs nothing else, is told at the end, and comes last in the next run.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import itertools
import math
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from msgspec import Struct, field
from rich.markup import escape

from common.catalog import cache, catalog, device, lessontext, store
from common.catalog.catalog import Step
from common.catalog.problems import Problem
from common.catalog.schema import Amount
from common.commands import arguments, choosing, console, measuring
from common.commands.choosing import Opened
from common.commands.console import RIGHT, WRONG
from common.jobs import run
from common.records import current, records
from common.records.records import Record, RecordError
from common.report import agreement, tables
from common.run import isolate
from common.timing import profiler, sanitizer
from common.trace import lanes

ROWS = "rows"  # of steps and libraries, and the ceilings
TOGETHER = 4  # under a profiler or a sanitizer, whose process takes seconds to start
FIRST_SECONDS = 60.0  # are enough for what never was measured here
COMMAND_SECONDS = 600.0
_EXPECTED = (run.DeviceError, profiler.ProfileError, sanitizer.SanitizerError, lanes.TraceError, TimeoutError)
_UNAVAILABLE = (profiler.UnavailableError, sanitizer.UnavailableError)
_UNKEPT = (store.StoreError, RecordError)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
Found = dict[str, str]  # what is wrong, by what it is of


@dataclass(frozen=True)
class Part:
    """Something that a record holds: what of it is missing or of older code, and how such is measured.

    Each of it is a tuple that begins with what has a name and a lesson. So many of a lesson are measured
    ``together``; 0: all that are missing. ``measure`` keeps what it measures, and returns what is wrong with it.
    """

    missing: Callable[[Record], list[Any]]
    measure: Callable[[list[Any], Opened], Found | None]
    together: int = 1


@dataclass(frozen=True)
class Own:
    """An entry that a lesson's own ``command`` writes, with the folder of its ``code``."""

    name: str
    lesson: str
    command: str
    code: str


class Past(Struct):
    """What other runs on a card left: by part what was begun and not measured, and the seconds that one took."""

    unfinished: dict[str, list[str]] = field(default_factory=dict)
    seconds: dict[str, Amount] = field(default_factory=dict)


class _TimeUpError(BaseException):
    """The minutes that were asked for are over."""


def commands(known: arguments.Commands) -> None:
    sub = known.add(
        "renew", _renew, "measure what this GPU's record lacks or has of older code; may be ended any time"
    )
    names = ", ".join((ROWS, *PARTS))
    sub.add_argument("parts", nargs="*", metavar="PART", help=f"of these only: {names} (default: all)")
    sub.add_argument(
        "--list", action="store_true", help="name what would be measured; without a GPU, for a shipped record"
    )
    sub.add_argument(
        "--minutes", type=float, metavar="N", help="end after so many; nothing is begun that would take longer"
    )
    arguments.takes_record(sub)


def _renew(options: argparse.Namespace) -> int:
    known = (ROWS, *PARTS)
    for name in options.parts:
        if name not in known:
            raise ValueError(f"PART {name!r}: must be one of {', '.join(known)}")
    minutes = math.inf if options.minutes is None else options.minutes
    if not minutes > 0:
        raise ValueError(f"--minutes {options.minutes:g}: must be above 0")
    names = [name for name in known if not options.parts or name in options.parts]
    if options.list:
        return _list(names, options.record)
    device.require_gpu("renewing a record")
    with _alone():
        renewal = Renewal(60 * minutes, options.record)
        try:
            with _ended_after(60 * minutes):
                renewal.run(names)
        except _TimeUpError:
            console.say().print("the time is up: what was measured is kept")
        finally:
            renewal.tell()
    return WRONG if any(renewal.failed.values()) else RIGHT


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """While open, no other ``renew`` measures in this checkout; raises ValueError if one does."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(store.locked(cache.FOLDER / "renewing", seconds=0))
        except store.StoreError as error:
            if not error.why.startswith("another program"):
                raise
            said = "another renew is measuring here: two at once would disturb each other, and measure all twice"
            raise ValueError(said) from None
        yield


@contextlib.contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """While open, raise _TimeUpError when the time is over, and end the processes that are waited for."""
    timed = math.isfinite(seconds) and threading.current_thread() is threading.main_thread()
    if not (timed and hasattr(signal, "setitimer")):
        yield
        return

    def up(*_: object) -> None:
        isolate.close()
        raise _TimeUpError

    before = signal.signal(signal.SIGALRM, up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Renewal:
    """A run of ``renew`` with so many seconds, of the user's or the ``shipped`` record: by part what ``failed`` and
    why, and what is ``left`` to the next."""

    def __init__(self, seconds: float, shipped: bool = False) -> None:
        self._shipped = shipped
        self._end = time.monotonic() + seconds
        self._card, self._past, self._longest = "", Past(), dict[str, float]()
        self._traced: set[str] = set()
        self.failed: dict[str, Found] = {}
        self.left: dict[str, list[str]] = {}

    def run(self, names: Sequence[str]) -> None:
        """Measure what these parts lack. Raises StoreError or RecordError if nothing can be kept."""
        opened = choosing.open_record(self._shipped)
        self._card = opened[0].slug
        self._past = cache.get("renewing", self._card, Past) or Past()
        for name in names:
            console.say().rule(name)
            if name == ROWS:
                self._rows(opened[0])
            else:
                self._part(name, PARTS[name], opened)

    def tell(self) -> None:
        """Say in one table what failed, and what there was no time for."""
        say = console.say()
        failed = [(part, *one) for part in self.failed for one in self._of(part)]
        if failed:
            say.print(tables.failed(failed))
        for part, names in self.left.items():
            if names:
                say.print(f"{part}: no time for {len(names)}, with which the next run goes on", soft_wrap=True)

    def _of(self, part: str) -> Iterator[tuple[str, str]]:
        """What failed of a part, for each reason."""
        reasons = itertools.groupby(sorted(self.failed[part].items(), key=lambda one: one[1]), lambda one: one[1])
        for why, found in reasons:
            yield ", ".join(name for name, _ in found), why

    def _rows(self, record: Record) -> None:
        """First those without a row of their code, then those of another driver or package; last those that failed in
        the last run: one that hangs costs its limit."""
        pairs = choosing.pairs(catalog.everything(), None, every_preset=True)
        late = [pair for pair in pairs if _named(pair) in self._past.unfinished.get(ROWS, [])]
        first = [pair for pair in _rows(record) if pair not in late]
        rest = [pair for pair in pairs if pair not in (*first, *late)]
        groups: list[dict[str, Any]] = [{"pairs": group} for group in (first, rest, late) if group]
        groups = groups if first or late else [{}]
        failed = self.failed.setdefault(ROWS, {})
        for chosen in groups:
            with self._noting(failed, [ROWS]):
                gpu, room = run.inspect_device()
                if not self._room(ROWS, 1):
                    self.left[ROWS] = list(map(_named, _rows(record, room)))
                    break
                bench = measuring.Bench(catalog.everything(), gpu, room, fresh=False, shipped=self._shipped, **chosen)
                try:
                    if measuring.bench(bench, self._enough) != RIGHT and not bench.failed:
                        failed[ROWS] = "told above"
                finally:
                    failed |= bench.failed
                    self._past.unfinished[ROWS] = list(failed)
                    self._keep()
                self.left.setdefault(ROWS, []).extend(bench.left)

    def _enough(self, seconds: float) -> bool:
        """Would another row like the longest so far not end in time?"""
        if seconds:
            self._took(ROWS, seconds)
        return not self._room(ROWS, 1)

    def _part(self, name: str, part: Part, opened: Opened) -> None:
        """What is missing, some of a lesson together; each of those alone if they fail, or did in the last run."""
        failed = self.failed.setdefault(name, {})
        missing = part.missing(opened[0])
        alone = set(self._past.unfinished.get(name, [])) & set(map(_named, missing))
        self._past.unfinished[name] = sorted(alone)
        waiting = sorted(missing, key=lambda one: _named(one) in alone)
        while waiting:
            batch = self._batch(name, part, waiting, alone)
            if not batch:
                self.left[name] = list(map(_named, waiting))
                return
            waiting = waiting[len(batch) :]
            try:
                rest, why = self._tried(name, part, batch, opened)
            except _UNAVAILABLE as error:  # for all of them
                failed |= dict.fromkeys(map(_named, [*batch, *waiting]), str(error))
                return
            if len(batch) > 1 and part.together:
                alone |= set(map(_named, rest))
                waiting = [*rest, *waiting]
            else:
                failed |= {_named(one): why.get(_named(one), "nothing came of it") for one in rest}

    def _tried(self, name: str, part: Part, batch: list[Any], opened: Opened) -> tuple[list[Any], Found]:
        """Measure these, which are unfinished until they are done; returns those that are missing still, and why."""
        names = list(map(_named, batch))
        before = self._past.unfinished[name]
        self._past.unfinished[name] = list(dict.fromkeys([*before, *names]))
        self._keep()
        why: Found = {}
        began = time.monotonic()
        try:
            with self._noting(why, names):
                self.failed[name] |= part.measure(batch, opened) or {}
                self._took(name, (time.monotonic() - began) / (len(batch) if part.together else 1))
        except _UNAVAILABLE:
            self._past.unfinished[name] = before
            self._keep()
            raise
        except BaseException:
            self.failed[name] |= why
            raise
        missing = part.missing(opened[0])
        rest = [one for one in batch if one in missing]
        done = set(names) - set(map(_named, rest))
        self._past.unfinished[name] = [one for one in self._past.unfinished[name] if one not in done]
        self._keep()
        return rest, why

    def _batch(self, name: str, part: Part, waiting: list[Any], alone: set[str]) -> list[Any]:
        """What is measured next; empty if there is no time for it."""
        if not part.together:
            return waiting if self._room(name, 1) else []
        if _named(waiting[0]) in alone:
            return waiting[: self._room(name, 1)]
        lesson = waiting[0][0].lesson
        same = itertools.takewhile(lambda one: one[0].lesson == lesson and _named(one) not in alone, waiting)
        return list(itertools.islice(same, self._room(name, part.together)))

    def _room(self, name: str, most: int) -> int:
        """For how many of a part, of at most so many, there is time; one that was never measured is tried alone."""
        left = self._end - time.monotonic()
        if not math.isfinite(left):
            return most
        each = self._longest.get(name, self._past.seconds.get(name))
        if each is None:
            return int(left >= FIRST_SECONDS)
        return max(0, min(most, int(left / max(each, 1e-3))))

    def _took(self, name: str, seconds: float) -> None:
        self._longest[name] = self._past.seconds[name] = max(seconds, self._longest.get(name, 0.0))

    @contextlib.contextmanager
    def _noting(self, found: Found, names: Sequence[str]) -> Iterator[None]:
        """Note for all of the names what goes wrong within, and go on; an end that is asked for is noted, too."""
        began = time.monotonic()
        try:
            yield
        except (*_UNKEPT, *_UNAVAILABLE):
            raise
        except Exception as error:  # whatever it is, it must not cost the others
            if isinstance(error, OSError) and error.errno in _FULL:  # but of these no other would be kept
                raise
            said = str(error)
            if not isinstance(error, _EXPECTED):
                said = f"{type(error).__name__}: {error}"
                if said not in self._traced:
                    traceback.print_exc()
                self._traced.add(said)
            console.say().print(f"[yellow]{escape(said)}[/]", soft_wrap=True)
            found |= dict.fromkeys(names, said)
        except BaseException as error:
            why = "the time was up" if isinstance(error, _TimeUpError) else "it was ended"
            found |= dict.fromkeys(names, f"{why} after {time.monotonic() - began:.0f} s of it")
            raise

    def _keep(self) -> None:
        """For the next run, which else would not know what failed."""
        cache.put("renewing", self._card, self._past)


def _named(one: tuple[Any, ...]) -> str:
    first, *at = one
    return " ".join([first.name, *map(str, at)])


def _list(names: list[str], shipped: bool) -> int:
    """Name what is missing of each part, or of older code."""
    room = None
    if device.gpu_count():
        record = choosing.open_record(shipped)[0]
        room = run.inspect_device()[1] if ROWS in names else None
    else:
        record = Record.load(records.RESULTS / f"{records.REFERENCE_GPU}.json")
    say = console.say()
    say.print(f"To be measured for the record of {escape(record.gpu_name)}:")
    for name in names:
        missing = _rows(record, room) if name == ROWS else PARTS[name].missing(record)
        say.print(f"{name}: {', '.join(map(_named, missing)) or 'nothing'}", soft_wrap=True)
    return RIGHT


def _able(record: Record) -> list[Step]:
    """Steps and experiments that the record's GPU can run, by lesson."""
    capability = record.data.gpu.compute_capability
    steps = (step for step in catalog.everything() if step.runs_on(capability))
    return sorted(steps, key=lambda step: step.lesson)


def _rows(record: Record, room_bytes: int | None = None) -> list[tuple[Step, str]]:
    """Those that are missing or of older code; on a card with that room those, too, that are of another driver, or of
    other packages."""
    pairs = choosing.pairs(_able(record), None, every_preset=True)
    if room_bytes is None:
        return [(step, preset) for step, preset in pairs if not current.timed(record, preset, step)]
    held = current.rows(record, pairs, room_bytes)
    return [pair for pair in pairs if pair not in held]


def _epilogues(record: Record) -> list[tuple[Step, str, str]]:
    found, capability = record.data.epilogues, record.data.gpu.compute_capability
    named = [(catalog.find(name), preset, ways) for name, preset, ways in lessontext.epilogues(catalog.LESSONS)]
    return [
        (step, preset, ways)
        for step, preset, ways in named
        if step.runs_on(capability)
        and (step.name not in found.get(preset, {}) or not current.epilogues(found[preset][step.name], step.name))
    ]


def _errors(record: Record) -> list[tuple[Step]]:
    """All of them or none: they are measured on the same operands."""
    steps = [step for step in map(catalog.find, lessontext.accuracy(catalog.LESSONS)) if step in _able(record)]
    return [] if current.errors(record, steps) else [(step,) for step in steps]


def _counters(record: Record) -> list[tuple[Step, str]]:
    """On each ladder's default preset; on others where they were read before."""
    steps = _able(record)
    others = (
        (step, preset) for step in steps for preset in catalog.presets(step) if record.profile(preset, step.name)
    )
    pairs = list(dict.fromkeys((*choosing.pairs(steps, None, every_preset=False), *others)))
    held = current.counters(record, pairs)
    return sorted((pair for pair in pairs if pair not in held), key=lambda pair: pair[0].lesson)


def _sanitized(record: Record) -> list[tuple[Step]]:
    held = current.sanitized(record, _able(record))
    return [(step,) for step in _able(record) if step not in held]


def _agreed(record: Record) -> list[tuple[Step, Problem]]:
    pairs = agreement.cases(_able(record))
    held = current.agreed(record, pairs)
    return [pair for pair in pairs if pair not in held]


def _own(record: Record) -> list[tuple[Own]]:
    network = lessontext.training(catalog.LESSONS)
    if network is None:
        return []
    folder, declared = network
    own = _lessons_records(folder.name, declared.code)
    held = own.load(record.slug, record.folder)
    return [
        (Own(name, folder.name, command, declared.code),)
        for name, command in declared.commands.items()
        if not own.holds(getattr(held, name, None))
    ]


def _lessons_records(lesson: str, code: str) -> Any:
    """The module with a lesson's own records: ``load``, ``change`` and ``holds``."""
    return import_module(f"{catalog.LESSONS.name}.{lesson}.{code}.record")


def _time_epilogues(convolutions: list[tuple[Step, str, str]], to: Opened) -> None:
    measuring.epilogues([(step.name, preset, ways) for step, preset, ways in convolutions], to)


def _profile(pairs: list[tuple[Step, str]], to: Opened) -> None:
    measuring.profile(pairs, to)


def _measure_errors(_: list[tuple[Step]], to: Opened) -> None:
    measuring.accuracy(to)


def _sanitize(steps: list[tuple[Step]], to: Opened) -> Found:
    measuring.sanitize([step for (step,) in steps], to)
    seen = to[0].data.sanitizer
    found = {
        step.name: [
            f"{seen[step.name][tool].errors} by {tool}" for tool in sanitizer.TOOLS if seen[step.name][tool].errors
        ]
        for (step,) in steps
    }
    return {name: f"errors that were found: {', '.join(tools)}" for name, tools in found.items() if tools}


def _agree(pairs: list[tuple[Step, Problem]], to: Opened) -> None:
    record, key = to
    for step, problem, entry in console.quietly("trace", agreement.refresh(pairs), pairs):
        record.put_agreement(step.name, str(problem), entry, key)


def _command(entries: list[tuple[Own]], to: Opened) -> None:
    """Run the lesson's command, which writes the entry. Raises DeviceError with what it says if it fails."""
    for (own,) in entries:
        words = [sys.executable, "-m", f"{catalog.LESSONS.name}.{own.lesson}", own.command]
        console.say().print(f"python {' '.join(words[1:])}", markup=False)
        try:
            done = subprocess.run(
                words, cwd=catalog.ROOT, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_SECONDS,
                encoding="utf-8", errors="replace",
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{own.command} was not done within {COMMAND_SECONDS:.0f} s") from None
        if done.returncode:
            said = " ".join(done.stderr.split())[-300:].removeprefix("error: ")
            raise run.DeviceError(said or f"{own.command} ended with exit code {done.returncode}")
        console.say().print(done.stdout.rstrip().rpartition("\n")[2], markup=False, soft_wrap=True)
        kept = _lessons_records(own.lesson, own.code)
        found = kept.load(to[0].slug)  # the command writes the user's record
        if found and to[0].folder != records.OWN:
            kept.change(found.gpu, getattr(found, own.name), to[0].folder)


PARTS = {
    "epilogues": Part(_epilogues, _time_epilogues),
    "errors": Part(_errors, _measure_errors, together=0),
    "counters": Part(_counters, _profile, TOGETHER),
    "sanitizer": Part(_sanitized, _sanitize, TOGETHER),
    "agreement": Part(_agreed, _agree, TOGETHER),
    "training": Part(_own, _command),
}
