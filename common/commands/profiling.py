"""The commands ``profile``, ``sanitize``, ``sweep``, ``trace --agree``; what ``bench`` measures beside times."""

from __future__ import annotations

import argparse
from dataclasses import replace

from msgspec.structs import asdict
from rich.markup import escape

from common.catalog import catalog, device, problems, sources
from common.catalog.catalog import Step
from common.commands import arguments, console
from common.commands.arguments import Opened
from common.commands.console import RIGHT, WRONG
from common.jobs import measuring
from common.jobs.messages import StepResult, Tile
from common.records import current, records
from common.records.entries import Agreement, Point, Profile, Sweep
from common.records.records import Record
from common.report import agreement, pages, tables
from common.timing import peers, tools


def commands(known: arguments.Commands) -> None:
    sub = known.add("profile", _profile, "read hardware counters with ncu and say what they mean")
    sub.add_argument("steps", nargs="*", metavar="STEP", help="steps or experiments (default: all)")
    arguments.takes_preset(sub, "one per ladder")
    arguments.takes_record(sub)

    sub = known.add("sanitize", _sanitize, "run compute-sanitizer's four tools over ragged shapes")
    sub.add_argument("steps", nargs="*", metavar="STEP", help="steps or experiments (default: all)")
    arguments.takes_record(sub)

    sub = known.add("sweep", _sweep, "time a step over its tile constants; an interrupted sweep goes on")
    sub.add_argument("step", metavar="STEP")
    arguments.takes_preset(sub, "the ladder's")
    text = "sweep these constants only; the others stay as shipped"
    sub.add_argument("--values", metavar='"NAME=1,2 ..."', help=text)
    arguments.takes_record(sub)


def _profile(options: argparse.Namespace) -> int:
    named = [catalog.find(name) for name in options.steps]
    preset = arguments.preset_of(named, options.problem)
    pairs = arguments.pairs(named or catalog.everything(), preset, every_preset=False, named=bool(named))
    device.require_gpu("profiling")
    profile(pairs, arguments.open_record(options.record))
    return RIGHT


def profile(pairs: list[tuple[Step, str]], opened: Opened) -> None:
    """Print the hardware's counters of each pair of step and preset, and record them."""
    record, key = opened
    for one in measuring.profile_steps(pairs):
        for entry in one.kernels:
            title = f"{one.step.name} on {one.preset}: {entry.kernel}"
            console.say().print(tables.counters(title, tools.sentences(entry)))
        found = Profile(**asdict(one.code), kernels=one.kernels, shape=one.shape)
        record.keep("profile", one.preset, {one.step.name: found}, key)


def _sanitize(options: argparse.Namespace) -> int:
    steps = [catalog.find(name) for name in options.steps] or catalog.everything()
    device.require_gpu("the sanitizer run")
    return sanitize(steps, arguments.open_record(options.record))


def sanitize(steps: list[Step], opened: Opened) -> int:
    """Print what compute-sanitizer's tools find in the steps, and record it; returns the exit code."""
    record, key = opened
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


def accuracy(items: list[tuple[Step]], opened: Opened) -> None:
    """Measure the errors of the steps' products over K, record and print them."""
    record, key = opened
    records.record_accuracy(record, key, measuring.measure_accuracy([step for (step,) in items]))
    say = console.say()
    title = "errors over the results' root mean square, 10⁻⁶"
    say.print(replace(pages.table("accuracy", record), title=title))
    say.print(replace(pages.table("unfit", record), title="operands beyond some precisions"))
    if not peers.available():
        say.print(peers.HOW_TO_GET)


def epilogues(items: list[tuple[Step, str, str]], opened: Opened) -> None:
    """Time steps on presets with the epilogues of a module, fused and apart; record and print the times."""
    record, key = opened
    say = console.say()
    for step, preset, ways in items:
        for _, _, result in measuring.measure_epilogues([(step.name, preset, ways)]):
            records.record_epilogues(record, key, step, preset, ways, result)
            found = pages.table("epilogues", record, step.name, preset)
            say.print(replace(found, title=f"{step.name} on {preset}"))
    if not peers.available():
        say.print(peers.HOW_TO_GET)


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


def agree(options: argparse.Namespace) -> int:
    """Show what the hardware counts beside what the tracer does: both now, or where there is no GPU as recorded."""
    for name in ("block", "html"):
        if getattr(options, name) is not None:
            raise ValueError(f"--{name}: goes with a trace of one block; --agree compares all blocks")
    steps = arguments.chosen(options)
    found: dict[str, dict[str, Agreement]] = {}
    if device.gpu_count():
        if options.file:
            steps = [replace(steps[0], path=options.file)]
        pairs = agreement.cases(steps)
        if options.shape is not None:
            shape = arguments.shape_of(steps, options.shape, simulator=True)
            pairs = [(step, shape) for step in steps]
        for step, problem, entry in console.quietly("trace", agreement.refresh(pairs), pairs):
            found.setdefault(step.name, {})[str(problem)] = entry
    else:
        record = Record.load(records.RESULTS / f"{records.REFERENCE_GPU}.json")
        if options.file or options.shape is not None:
            raise ValueError(f"--agree: {record.gpu_name} has counted shipped steps alone, and there is no GPU here")
        found = {step.name: record.data.agreement.get(step.name, {}) for step in steps}
    if options.json:
        console.print_json(found)
    else:
        console.say().print(agreement.agreed(found, steps))
    return RIGHT
