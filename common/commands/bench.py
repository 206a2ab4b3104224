"""The commands ``bench``, which measures what this GPU's record lacks or has of older code, and ``sweep``.

A record has rows, times of steps and libraries, and parts beside these: what belongs to each, whether it is current,
and how it is measured. Either command may be interrupted at any time: what is measured is kept as it comes, and the
next run goes on with the rest.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from msgspec.structs import asdict
from rich.markup import escape

from common.catalog import catalog, device, lessontext, problems, sources
from common.catalog.catalog import Step
from common.catalog.problems import Problem
from common.check import run
from common.commands import arguments, console, verdicts
from common.commands.arguments import Opened
from common.commands.console import RIGHT, WRONG
from common.records import current, records
from common.records.entries import Point, Profile, Sweep
from common.records.records import Record
from common.report import agreement, pages, tables
from common.run.messages import Outcome, StepResult, Tile
from common.timing import measuring, peers, timing, tools
from common.trace.state import TraceError

ROWS = "rows"  # times of steps and libraries, and the GPU's ceilings
_FAILURES = (run.DeviceError, tools.ToolError, TraceError, TimeoutError)


def commands(known: arguments.Commands) -> None:
    sub = known.add("bench", _bench, "check and time all steps and NVIDIA's libraries that have no current record")
    sub.add_argument(
        "steps", nargs="*", metavar="STEP", help="measure these (default: those without a current record)"
    )
    arguments.takes_preset(sub, "all")
    names = ", ".join((ROWS, *PARTS))
    sub.add_argument("--part", action="append", metavar="PART", help=f"{names} (default: rows; with --record all)")
    sub.add_argument("--fresh", action="store_true", help="measure all of the rows anew")
    arguments.takes_record(sub)

    sub = known.add("sweep", _sweep, "time a step with other tile constants; an interrupted sweep is continued")
    sub.add_argument("step", metavar="STEP")
    arguments.takes_preset(sub, "the ladder's")
    text = "sweep these constants only; the others stay as shipped"
    sub.add_argument("--values", metavar='"NAME=1,2 ..."', help=text)
    arguments.takes_record(sub)


def _bench(options: argparse.Namespace) -> int:
    known = (ROWS, *PARTS)
    for name in options.part or ():
        if name not in known:
            raise ValueError(f"--part {name!r}: must be one of {', '.join(known)}")
    chosen = [catalog.find(name) for name in options.steps]
    whole = options.record and not (chosen or options.problem)
    names = options.part or (known if whole else (ROWS,))
    steps = chosen or catalog.everything()
    pairs = arguments.pairs(steps, options.problem, every_preset=True, named=bool(chosen))
    device.require_gpu("the bench")
    failed: list[tuple[str, str, str]] = []  # part, what of it, and why
    code = RIGHT
    for name in names:
        if len(names) > 1:
            console.say().rule(name)
        if name == ROWS:
            bench = Bench(pairs, *run.inspect_device(), options.fresh or bool(chosen), options.record)
            code = max(code, bench.run())
            failed += [(name, what, why) for what, why in bench.failed.items()]
            continue
        part, opened = PARTS[name], arguments.open_record(options.record)
        for group, found in _measure(part, part.chosen(opened[0], chosen, options.problem), opened):
            if isinstance(found, Exception):
                failed.append((name, group, str(found)))
            else:
                code = max(code, found)
    if failed:
        console.say().print(tables.failed(failed))
    return max(code, WRONG if failed else RIGHT)


def _measure(part: Part, items: list[Any], opened: Opened) -> Iterator[tuple[str, int | Exception]]:
    """Measure items, some together, and each alone of those that failed. Yields their names with what came of them:
    an exit code, or what stood in the way."""
    groups = [items[at : at + part.together] for at in range(0, len(items), part.together)]
    while groups:
        group = groups.pop(0)
        try:
            yield ", ".join(map(named, group)), part.measure(group, opened)
        except tools.UnavailableError as error:  # for all of them
            yield ", ".join(map(named, chain(group, *groups))), error
            return
        except _FAILURES as error:
            if len(group) > 1:
                groups[:0] = [[one] for one in group]
            else:
                yield named(group[0]), error


class Bench:
    """What of a card's record, its own or the ``shipped`` one, is to be measured, and doing it.

    ``pairs``  steps and presets; with ``fresh`` also those whose rows are current
    ``quick``  only a second of launches for each, and no library
    ``libraries``  also the vendor's libraries; without them the ceilings are measured only if they are not current
    ``outcomes``, ``failed``  what came of the steps, and what has no row since it was tried, with the reason
    """

    def __init__(
        self,
        pairs: list[tuple[Step, str]],
        gpu: device.Gpu,
        room_bytes: int,
        fresh: bool,
        shipped: bool = False,
        quick: bool = False,
        libraries: bool = True,
    ) -> None:
        self._record = Record.open(gpu, arguments.folder(shipped))
        self._gpu, self._quick = gpu, quick
        # a layer's channels-last twin has the layer's libraries beside it
        twins = problems.CHANNELS_LAST.values()
        presets = [preset for preset in dict.fromkeys(preset for _, preset in pairs) if preset not in twins]
        self._libraries = libraries and not quick
        presets = presets if peers.available() and self._libraries else []
        record, known = self._record, not fresh
        self._pairs = [pair for pair in pairs if not (known and current.row(record, *pair, room_bytes, not quick))]
        self._presets = [name for name in presets if not (known and current.libraries(record, name, room_bytes))]
        self._held = len(pairs) - len(self._pairs) + len(presets) - len(self._presets)
        self._ceilings = (fresh and libraries) or not current.ceilings(self._record)
        self.outcomes: list[Outcome] = []
        self.failed: dict[str, str] = {}

    def run(self, wrong: Iterable[str] = ()) -> int:
        """Measure, but for the steps named in ``wrong``; each row is written as soon as it is there. Returns the exit
        code."""
        say = console.say()
        console.say_kept(self._held, "row", "rows")
        pairs = [pair for pair in self._pairs if pair[0].name not in wrong]
        names = ["ceilings"] * self._ceilings + [f"{step.name} {preset}" for step, preset in pairs]
        names += [f"the library {preset}" for preset in self._presets]
        if not names:
            return RIGHT
        key = self._record.start_run()
        if pairs:
            say.print("[dim]compiling kernels ahead[/]")
            run.compile_ahead(pairs)
        found = measuring.measure(pairs, None, self._presets, self._ceilings, self._quick)
        with closing(found):
            for kind, one in console.progress("time", found, names, verdicts.measured_line):
                self._keep(kind, one, key)
                if kind == "step":
                    self.outcomes.append(one)
        self.outcomes, ceilings = measuring.latest(self.outcomes), self._record.ceilings
        if ceilings is not None:
            rates = f"copy {ceilings.copy_gbs:,.0f} GB/s, FP32 multiply-add {ceilings.fma_gflops:,.0f} GFLOP/s"
            say.print(f"{escape(self._gpu.name)}: {rates}")
            verdicts.print_times(self.outcomes, ceilings, self._gpu.name)
        if self._libraries:
            console.say_libraries()
        return verdicts.exit_code(self.outcomes, asked=False)

    def _keep(self, kind: str, found: Any, key: str) -> None:
        """Write what came of one measurement, or note why nothing did."""
        if kind == "ceilings":
            self._record.set_ceilings(found, key, timing.MEASURE_VERSION)
        elif kind == "step" and found.status == "right":
            records.record_step(self._record, key, found)
        elif kind == "step" and not found.elsewhere:
            why = "; ".join(found.reasons) or found.message or found.status
            self.failed[f"{found.step.name} {found.preset}"] = why
        elif kind == "library":
            preset, result = found
            if result.status == "right":
                records.record_peers(self._record, key, preset, result)
            if result.message:
                self.failed[f"the library {preset}"] = result.message


# --- parts ---


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


def _epilogues(_: Record, steps: list[Step], __: str | None) -> list[tuple[Step, str, str]]:
    found = [(catalog.find(name), preset, ways) for name, preset, ways in lessontext.epilogues(catalog.LESSONS)]
    return [entry for entry in found if entry[0] in steps]


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
    return [(step,) for step in map(catalog.find, lessontext.accuracy(catalog.LESSONS)) if step in steps]


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
    found = list(console.progress("sanitize", measuring.sanitize_steps(steps), expected, _sanitized_line))
    say = console.say()
    say.print(tables.sanitized(found))
    for tool, step, count, report in found:
        if count:
            say.print(f"{step.name}: {tool}: {escape(report)}", soft_wrap=True)
    for step in steps:
        errors = {tool: count for tool, one, count, _ in found if one == step}
        records.record_sanitizer(record, key, step, errors)
    return WRONG if any(count for _, _, count, _ in found) else RIGHT


def _sanitized_line(entry: tuple[str, Step, int, str]) -> str:
    """``memcheck: STEP, 0 errors``."""
    tool, step, count, _ = entry
    return f"{tool}: {step.name}, {count} error{'s' * (count != 1)}"


PARTS = {
    "epilogues": Part(_epilogues, _has_epilogue, _time_epilogues),
    "accuracy": Part(_accuracy, _has_accuracy, _measure_accuracy, together=1000),
    "counters": Part(_counters, _has_counters, _profile, together=4),  # a profiled process takes seconds to start
    "sanitizer": Part(lambda _, steps, __: [(step,) for step in steps], _is_sanitized, _sanitize, together=4),
    "agreement": Part(_agreement, _agrees, _agree, together=4),
}


# --- sweeps ---


def _sweep(options: argparse.Namespace) -> int:
    step = catalog.find(options.step)
    preset = options.problem or problems.DEFAULT_PRESET[step.ladder]
    problems.preset(preset, step.ladder)
    device.require_gpu("a sweep")
    found = measuring.tunables(step, preset)
    record, key = arguments.open_record(options.record)
    old = record.sweep(preset, step.name)
    holds = current.sweep(record, preset, step.name)
    points = old.points if old and holds else []
    done = [point.tile for point in points]
    values = measuring.narrowed(found.tunables, found.shipped, options.values)
    tiles = [tile for tile in measuring.combinations(values) if tile not in done]
    say = console.say()
    if old and not holds:
        say.print("the recorded sweep was measured on an older version of the file: all of it is measured anew")
    if points:
        say.print(f"{len(points)} points of this sweep are already recorded, {len(tiles)} are left")
    for tile, result in console.progress("sweep", measuring.sweep(step, preset, tiles), tiles, _swept_line):
        point = Point(tile=tile, status=result.status)
        if result.status == "right":
            point.median_ms = result.time.median_ms
        else:
            point.reason = result.message or "; ".join(one.message for one in result.findings)
        points.append(point)
        entry = Sweep(**asdict(sources.provenance(step.path)), shipped=found.shipped, points=points)
        record.keep("sweeps", preset, {step.name: entry}, key)
    say.print(tables.swept(f"{step.name} on {preset}, {record.gpu_name}", points, found.shipped))
    return WRONG if any(p.status in ("wrong", "crashed", "timed_out") for p in points) else RIGHT


def _swept_line(point: tuple[Tile, StepResult]) -> str:
    """``BLOCK_M=64 BLOCK_N=64: 2.31 ms``."""
    tile, result = point
    words = " ".join(f"{name}={value}" for name, value in tile.items())
    found = f"{result.time.median_ms:.4g} ms" if result.timing is not None else result.status.replace("_", " ")
    return f"{words}: {found}"
