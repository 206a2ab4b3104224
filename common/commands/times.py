"""The commands ``time``, and ``sweep``, which times a step with other tile constants and goes on where it stopped."""

from __future__ import annotations

import argparse

from msgspec.structs import asdict

from common.catalog import catalog, device, problems, sources
from common.commands import arguments, console, edits, verdicts
from common.commands.console import RIGHT, WRONG
from common.records import current, records
from common.records.entries import Point, Sweep
from common.report import tables
from common.run.messages import Outcome, StepResult, Tile
from common.timing import measuring
from common.timing.ceilings import Ceilings


def commands(known: arguments.Commands) -> None:
    sub = known.add("time", _time, "time steps on the GPU")
    arguments.takes_steps(sub)
    arguments.takes_preset(sub, "one per ladder")

    sub = known.add("sweep", _sweep, "time a step with other tile constants; an interrupted sweep is continued")
    sub.add_argument("step", metavar="STEP")
    arguments.takes_preset(sub, "the ladder's")
    text = "sweep these constants only; the others stay as shipped"
    sub.add_argument("--values", metavar='"NAME=1,2 ..."', help=text)
    arguments.takes_record(sub)


def _time(options: argparse.Namespace) -> int:
    device.require_gpu("timing")
    steps = arguments.chosen(options)
    pairs = arguments.pairs(steps, options.problem, every_preset=False, named=bool(options.steps))
    gpu, ceilings = measuring.measure_device()
    edits.keep([] if options.file else steps)
    times = measuring.time_steps(pairs, options.file)
    outcomes = measuring.latest(console.progress("time", times, pairs, verdicts.timed_line, options.json))
    if options.json:
        results = [_timed_json(outcome, ceilings) for outcome in outcomes]
        found = {"gpu": gpu, "slug": gpu.slug, "ceilings": ceilings, "results": results}
        console.print_json(found)
    else:
        verdicts.print_times(outcomes, ceilings, gpu.name)
    return verdicts.exit_code(outcomes, asked=True)


def _timed_json(outcome: Outcome, ceilings: Ceilings) -> dict[str, object]:
    entry: dict[str, object] = {"step": outcome.step.name, "problem": outcome.preset, **outcome.told()}
    if outcome.status == "right":
        figures = records.derive(outcome.problem, outcome.time.median_ms, ceilings, outcome.step.precision)
        if figures:
            entry |= {key: getattr(figures, key) for key in ("gflops", "gbs", "floor_ms", "percent_of_floor")}
    return entry


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
