"""The commands that write a record: ``bench``, ``profile``, ``sanitize`` and ``sweep``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import replace
from typing import Any

from msgspec.structs import asdict
from rich.markup import escape

from common.catalog import catalog, device, lessontext, problems
from common.catalog.catalog import Step
from common.commands import arguments, choosing, console, flow, verdicts
from common.commands.console import RIGHT, WRONG
from common.jobs import run
from common.jobs.run import Outcome
from common.records import current, recording
from common.records.entries import Point, Profile, Sweep
from common.records.records import Record
from common.report import pages, tables
from common.timing import peers, profiler, sanitizer, timing


def commands(known: arguments.Commands) -> None:
    sub = known.add("bench", _bench, "check and time every step and the vendor's libraries, and record it")
    sub.add_argument("steps", nargs="*", metavar="STEP", help="steps or experiments (default: all)")
    sub.add_argument("--problem", metavar="PRESET", help="this preset only (default: all)")
    arguments.takes_record(sub)

    sub = known.add("profile", _profile, "read hardware counters with ncu and say what they mean")
    sub.add_argument("steps", nargs="*", metavar="STEP", help="steps or experiments (default: all)")
    sub.add_argument("--problem", metavar="PRESET", help="preset (default: one per ladder)")
    arguments.takes_record(sub)

    sub = known.add("sanitize", _sanitize, "run compute-sanitizer's four tools over ragged shapes")
    sub.add_argument("steps", nargs="*", metavar="STEP", help="steps or experiments (default: all)")
    arguments.takes_record(sub)

    arguments.takes_record(known.add("accuracy", _accuracy, "measure the errors of products over K, and record them"))

    sub = known.add("epilogues", _epilogues, "time what follows a convolution, fused and apart, and record it")
    sub.add_argument("--problem", metavar="PRESET", help="this preset only (default: those that lessons name)")
    arguments.takes_record(sub)

    sub = known.add("sweep", _sweep, "time a step over its tile constants; an interrupted sweep goes on")
    sub.add_argument("step", metavar="STEP")
    sub.add_argument("--problem", metavar="PRESET", help="preset (default: the ladder's)")
    sub.add_argument(
        "--values", metavar='"NAME=1,2 ..."', help="sweep these constants only; the others stay as shipped"
    )
    arguments.takes_record(sub)


def _bench(options: argparse.Namespace) -> int:
    device.require_gpu("the bench")
    steps = [catalog.find(name) for name in options.steps] or catalog.everything()
    pairs = choosing.pairs(steps, options.problem, every_preset=True, named=bool(options.steps))
    return bench(Bench(steps, *run.inspect_device(), fresh=True, pairs=pairs, shipped=options.record))


def bench(what: Bench, enough: Callable[[float], bool] = lambda seconds: False) -> int:
    """Compile ahead and measure, until ``enough`` (:meth:`Bench.run`)."""
    preparing = what.prepare([])
    try:
        preparing.before_timing()
        return what.run(enough=enough)
    finally:
        preparing.cancel()


def _profile(options: argparse.Namespace) -> int:
    named = [catalog.find(name) for name in options.steps]
    preset = choosing.preset_of(named, options.problem)
    pairs = choosing.pairs(named or catalog.everything(), preset, every_preset=False, named=bool(named))
    device.require_gpu("profiling")
    return profile(pairs, choosing.open_record(options.record))


def profile(pairs: list[tuple[Step, str]], keep: choosing.Opened) -> int:
    """Print the hardware's counters of each pair of step and preset, and ``keep`` them."""
    profiles = run.profile_steps(pairs)
    say = console.say()
    for one in profiles:
        for entry in one.kernels:
            say.print(tables.counters(f"{one.step.name} on {one.preset}: {entry.kernel}", profiler.sentences(entry)))
    record, key = keep
    for one in profiles:
        found = Profile(**asdict(one.code), kernels=one.kernels, shape=one.shape)
        record.put_profile(one.preset, one.step.name, found, key)
    return RIGHT


def _sanitize(options: argparse.Namespace) -> int:
    steps = [catalog.find(name) for name in options.steps] or catalog.everything()
    device.require_gpu("the sanitizer run")
    return sanitize(steps, choosing.open_record(options.record))


def sanitize(steps: list[Step], keep: choosing.Opened) -> int:
    """Print what compute-sanitizer's tools find in the steps, and ``keep`` it."""
    sanitizing = run.sanitize_steps(steps)
    found = list(console.progress("sanitize", sanitizing, steps * len(sanitizer.TOOLS), flow.sanitized))
    say = console.say()
    say.print(tables.sanitized(found))
    for tool, step, count, report in found:
        if count:
            say.print(f"{step.name}: {tool}: {escape(report)}", soft_wrap=True)
    record, key = keep
    for step in steps:
        errors = {tool: count for tool, one, count, _ in found if one == step}
        record.put_sanitizer(step.name, errors, catalog.provenance(step.path), key)
    return WRONG if any(count for _, _, count, _ in found) else RIGHT


def _accuracy(options: argparse.Namespace) -> int:
    device.require_gpu("measuring errors")
    return accuracy(choosing.open_record(options.record))


def accuracy(keep: choosing.Opened) -> int:
    """Measure the errors of products over K, ``keep`` them, and print them."""
    record, key = keep
    steps = [catalog.find(name) for name in lessontext.accuracy(catalog.LESSONS)]
    found = run.measure_accuracy(steps)
    recording.record_accuracy(record, key, found)
    say = console.say()
    title = "errors over the results' root mean square, 10⁻⁶"
    say.print(replace(pages.table("accuracy", record), title=title))
    say.print(replace(pages.table("unfit", record), title="operands beyond some precisions"))
    if not peers.available():
        say.print(peers.HOW_TO_GET)
    return RIGHT


def _epilogues(options: argparse.Namespace) -> int:
    named = lessontext.epilogues(catalog.LESSONS)
    chosen = [one for one in named if options.problem in (None, one[1])]
    if not chosen:
        known = ", ".join(preset for _, preset, _ in named) or "none"
        raise ValueError(f"--problem {options.problem!r}: epilogues are timed on {known}")
    device.require_gpu("timing epilogues")
    return epilogues(chosen, choosing.open_record(options.record))


def epilogues(chosen: list[tuple[str, str, str]], keep: choosing.Opened) -> int:
    """Time the steps on the presets, fused with the modules' epilogues and apart, ``keep`` the times, print them."""
    record, key = keep
    say = console.say()
    ways = {(step, preset): module for step, preset, module in chosen}
    for step, preset, result in run.measure_epilogues(chosen):
        recording.record_epilogues(record, key, step, preset, ways[step.name, preset], result)
        say.print(replace(pages.table("epilogues", record, step.name, preset), title=f"{step.name} on {preset}"))
    if not peers.available():
        say.print(peers.HOW_TO_GET)
    return RIGHT


def _sweep(options: argparse.Namespace) -> int:
    step = catalog.find(options.step)
    preset = options.problem or problems.DEFAULT_PRESET[step.ladder]
    problems.preset(preset, step.ladder)
    device.require_gpu("a sweep")
    found = run.tunables(step, preset)
    record, key = choosing.open_record(options.record)
    old = record.sweep(preset, step.name)
    holds = current.sweep(record, preset, step.name)
    points = old.points if old and holds else []
    done = [point.tile for point in points]
    values = run.narrowed(found["tunables"], found["shipped"], options.values)
    tiles = [tile for tile in run.combinations(values) if tile not in done]
    say = console.say()
    if old and not holds:
        say.print("the recorded sweep was measured on an older version of the file: all of it is measured anew")
    if points:
        say.print(f"{len(points)} points of this sweep are already recorded, {len(tiles)} are left")
    for tile, result in console.progress("sweep", run.sweep(step, preset, tiles), tiles, flow.swept):
        point = Point(tile=tile, status=result["status"])
        if result["status"] == "right":
            point.median_ms = result["timing"].median_ms
        else:
            point.reason = result.get("message") or "; ".join(f["message"] for f in result["findings"])
        points.append(point)
        entry = Sweep(**asdict(catalog.provenance(step.path)), shipped=found["shipped"], points=points)
        record.put_sweep(preset, step.name, entry, key)
    say.print(tables.swept(f"{step.name} on {preset}, {record.gpu_name}", points, found["shipped"]))
    return WRONG if any(p.status in ("wrong", "crashed", "timed_out") for p in points) else RIGHT


class Bench:
    """What of a card's record, or of its ``shipped`` one, is to be measured, and doing it: of ``pairs`` or of all.

    ``quick``: each step on its ladder's default alone, and no library.
    """

    def __init__(self, steps: list[Step], gpu: device.Gpu, room_bytes: int, fresh: bool, **chosen: Any) -> None:
        self._record = Record.open(gpu, choosing.folder(chosen.get("shipped", False)))
        self._gpu = gpu
        self._quick = chosen.get("quick", False)
        pairs = chosen.get("pairs") or choosing.pairs(steps, None, every_preset=not self._quick)
        # a layer's channels-last twin has the layer's libraries beside it
        twins = problems.CHANNELS_LAST.values()
        presets = [preset for preset in dict.fromkeys(preset for _, preset in pairs) if preset not in twins]
        presets = presets if peers.available() and not self._quick else []
        held = [] if fresh else current.rows(self._record, pairs, room_bytes, not self._quick)
        libraries = [] if fresh else current.libraries(self._record, presets, room_bytes)
        self._held = len(held) + len(libraries)
        self._pairs = [pair for pair in pairs if pair not in held]
        self._presets = [preset for preset in presets if preset not in libraries]
        self._ceilings = fresh or not current.ceilings(self._record)
        self.failed: dict[str, str] = {}
        """What has no row since it was tried, and why."""
        self.left: list[str] = []
        """What was not tried, as it was enough."""

    def prepare(self, checked: list[Step]) -> run.Preparing:
        """Compile what will be timed, and what is checked before, in the background."""
        wanted: dict[Step, list[problems.Problem]] = {step: [] for step, _ in self._pairs}
        for step, preset in self._pairs:
            wanted[step].append(problems.preset(preset))
        for step in checked:
            wanted.setdefault(step, []).append(problems.FIRST[step.ladder])
        return run.Preparing(wanted, self._gpu)

    def run(self, wrong: Iterable[str] = (), enough: Callable[[float], bool] = lambda seconds: False) -> int:
        """Measure what is to be measured, but for the steps named; each row is written as soon as it is there.

        After each row ``enough`` is asked, with its seconds.
        """
        say = console.say()
        console.say_kept(self._held, "row", "rows")
        pairs = [pair for pair in self._pairs if pair[0].name not in wrong]
        if not (pairs or self._presets or self._ceilings):
            return RIGHT
        record, key = self._record, self._record.start_run()
        total = [
            *(["ceilings"] if self._ceilings else []),
            *(f"{step.name} {preset}" for step, preset in pairs),
            *(f"the library {preset}" for preset in self._presets),
        ]
        outcomes: list[Outcome] = []
        tried: list[str] = []
        with closing(self._measured(pairs)) as measuring:
            began = time.monotonic()
            for kind, found in console.progress("time", measuring, total, flow.measured):
                tried.append(self._keep(kind, found, key))
                if kind == "step":
                    outcomes.append(found)
                now = time.monotonic()
                # one that failed says nothing of the next one's time
                if enough(0.0 if tried[-1] in self.failed else now - began):
                    break
                began = now
        outcomes = run.latest(outcomes)
        self.left = [name for name in total if name not in tried]
        ceilings = record.ceilings
        if ceilings is None:  # it was enough before them
            return verdicts.exit_code(outcomes, asked=False)
        say.print(
            f"{escape(self._gpu.name)}: copy {ceilings.copy_gbs:,.0f} GB/s, "
            f"FP32 multiply-add {ceilings.fma_gflops:,.0f} GFLOP/s"
        )
        verdicts.print_times(outcomes, ceilings, self._gpu.name)
        if not peers.available() and not self._quick:
            say.print(peers.HOW_TO_GET)
        return verdicts.exit_code(outcomes, asked=False)

    def _measured(self, pairs: list[tuple[Step, str]]) -> Generator[tuple[str, Any], None, None]:
        yield from run.measure(pairs, None, self._presets, self._ceilings, self._quick)

    def _keep(self, kind: str, found: Any, key: str) -> str:
        """Write what came of one measurement, or note why nothing did; returns its name."""
        if kind == "ceilings":
            if found["status"] != "right":
                raise run.DeviceError(f"the GPU could not be measured: {found['message']}")
            self._record.set_ceilings(found["ceilings"], key, timing.MEASURE_VERSION)
            return "ceilings"
        if kind == "step":
            name = f"{found.step.name} {found.preset}"
            if found.status == "right":
                recording.record_step(self._record, key, found)
            elif not found.elsewhere:
                self.failed[name] = "; ".join(found.reasons) or found.result.get("message") or found.status
            return name
        preset, result = found
        name = f"the library {preset}"
        if result["status"] == "right":
            recording.record_peers(self._record, key, preset, result)
        if result.get("message"):
            self.failed[name] = result["message"]
            console.say().print(f"[yellow]the library on {preset}: {escape(result['message'])}[/]")
        return name
