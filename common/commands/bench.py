"""The commands ``bench``, which measures what this GPU's record lacks or has of older code, and ``sweep``.

A record has rows, times of steps and libraries, and parts beside these. Both may be interrupted at any time: what is
measured is kept as it comes, and the next run goes on with the rest.
"""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import Any

from msgspec.structs import asdict
from rich.markup import escape

from common.catalog import catalog, device, problems, sources
from common.catalog.catalog import Step
from common.check import run
from common.commands import arguments, console, verdicts
from common.commands.console import RIGHT, WRONG
from common.commands.parts import PARTS
from common.records import current, records
from common.records.entries import Point, Sweep
from common.records.records import Record
from common.report import tables
from common.run.messages import Outcome, StepResult, Tile
from common.timing import measuring, peers, timing

ROWS = "rows"  # times of steps and libraries, and the GPU's ceilings


def run_bench(options: argparse.Namespace) -> int:
    known = (ROWS, *PARTS)
    for name in options.part or ():
        if name not in known:
            raise ValueError(f"--part {name!r}: must be one of {', '.join(known)}")
    chosen = [catalog.find(name) for name in options.steps]
    pairs = arguments.pairs(chosen or catalog.everything(), options.problem, every_preset=True, named=bool(chosen))
    device.require_gpu("the bench")
    failed: list[tuple[str, str, str]] = []  # part, what of it, and why
    code = RIGHT
    for name in options.part or (known if options.record and not (chosen or options.problem) else (ROWS,)):
        console.say().rule(name)
        if name == ROWS:
            outcomes, why = measure_rows(pairs, *run.inspect_device(), bool(chosen), options.record)
            code = max(code, verdicts.exit_code(outcomes, asked=False))
            failed += [(name, *one) for one in why.items()]
            continue
        for what, found in PARTS[name].run(arguments.open_record(options.record), chosen, options.problem):
            if isinstance(found, Exception):
                failed.append((name, what, str(found)))
            else:
                code = max(code, found)
    if failed:
        console.say().print(tables.failed(failed))
    return max(code, WRONG if failed else RIGHT)


def measure_rows(
    pairs: list[tuple[Step, str]], gpu: device.Gpu, room_bytes: int, fresh: bool, shipped: bool = False,
    quick: bool = False, libraries: bool = True,
) -> tuple[list[Outcome], dict[str, str]]:  # fmt: skip
    """Measure what a card's record, the user's or the ``shipped`` one, lacks of steps on presets; each row is written
    as soon as it is there.

    ``fresh``: also those whose rows are current. ``quick``: a second of launches for each, and no library.
    ``libraries``: also the vendor's; without them the ceilings are measured only if they are not current. Returns
    what came of the steps, and what has no row though it was tried, with the reason.
    """
    record, say = Record.open(gpu, arguments.folder(shipped)), console.say()
    twins = problems.CHANNELS_LAST.values()  # a layer's has the layer's libraries beside it
    wanted = libraries and not quick
    presets = [one for one in dict.fromkeys(preset for _, preset in pairs) if one not in twins and wanted]
    presets = presets if peers.available() else []
    kept = len(pairs) + len(presets)
    if not fresh:
        pairs = [pair for pair in pairs if not current.row(record, *pair, room_bytes, not quick)]
        presets = [name for name in presets if not current.libraries(record, name, room_bytes)]
    console.say_kept(kept - len(pairs) - len(presets), "rows")
    with_ceilings = (fresh and libraries) or not current.ceilings(record)
    expected = [*["ceilings"] * with_ceilings, *pairs, *presets]
    outcomes: list[Outcome] = []
    failed: dict[str, str] = {}
    if not expected:
        return outcomes, failed
    key = record.start_run()
    say.print("[dim]compiling kernels ahead[/]")
    run.compile_ahead(pairs)
    with closing(measuring.measure(pairs, None, presets, with_ceilings, quick)) as found:
        for kind, one in console.progress("time", found, expected, _line):
            if kind == "step":
                outcomes.append(one)
            if why := _keep(record, kind, one, key):
                failed[_line((kind, one)).partition(":")[0]] = why
    outcomes = measuring.latest(outcomes)
    if record.ceilings is not None:
        rates = record.ceilings
        said = f"copy {rates.copy_gbs:,.0f} GB/s, FP32 multiply-add {rates.fma_gflops:,.0f} GFLOP/s"
        say.print(f"{escape(gpu.name)}: {said}")
        verdicts.print_times(outcomes, rates, gpu.name)
    if wanted and not peers.available():
        say.print(peers.HOW_TO_GET)
    return outcomes, failed


def _keep(record: Record, kind: str, found: Any, key: str) -> str:
    """Write what came of one measurement; why there is no row of it, if so."""
    if kind == "ceilings":
        record.set_ceilings(found, key, timing.MEASURE_VERSION)
        return ""
    if kind == "library":
        preset, result = found
        if result.status == "right":
            records.record_peers(record, key, preset, result)
        return result.message or ""
    if found.status == "right":
        records.record_step(record, key, found)
    elif not found.elsewhere:
        return "; ".join(found.reasons) or found.message or found.status
    return ""


def _line(entry: tuple[str, Any]) -> str:
    """``STEP PRESET: right, 31.2 ms; 1.5 s``, or ``the library PRESET: measured``."""
    kind, found = entry
    if kind == "step":
        return verdicts.line(found)
    return f"the library {found[0]}: measured" if kind == "library" else f"{kind}: measured"


# --- sweep ---


def sweep(options: argparse.Namespace) -> int:
    step = catalog.find(options.step)
    preset = options.problem or problems.DEFAULT_PRESET[step.ladder]
    problems.preset(preset, step.ladder)
    device.require_gpu("a sweep")
    found = measuring.tunables(step, preset)
    record, key = arguments.open_record(options.record)
    old = record.sweep(preset, step.name)
    points = old.points if old and current.sweep(record, preset, step.name) else []
    done = [point.tile for point in points]
    values = measuring.narrowed(found.tunables, found.shipped, options.values)
    tiles = [tile for tile in measuring.combinations(values) if tile not in done]
    console.say().print(f"{len(points)} points of this sweep are recorded and current, {len(tiles)} are left")
    for tile, result in console.progress("sweep", measuring.sweep(step, preset, tiles), tiles, _swept_line):
        point = Point(tile=tile, status=result.status)
        if result.status == "right":
            point.median_ms = result.time.median_ms
        else:
            point.reason = result.message or "; ".join(one.message for one in result.findings)
        points.append(point)
        entry = Sweep(**asdict(sources.provenance(step.path)), shipped=found.shipped, points=points)
        record.keep("sweeps", preset, {step.name: entry}, key)
    console.say().print(tables.swept(f"{step.name} on {preset}, {record.gpu_name}", points, found.shipped))
    return WRONG if any(p.status in ("wrong", "crashed", "timed_out") for p in points) else RIGHT


def _swept_line(point: tuple[Tile, StepResult]) -> str:
    """``BLOCK_M=64 BLOCK_N=64: 2.31 ms``."""
    tile, result = point
    words = " ".join(f"{name}={value}" for name, value in tile.items())
    found = f"{result.time.median_ms:.4g} ms" if result.timing is not None else result.status.replace("_", " ")
    return f"{words}: {found}"
