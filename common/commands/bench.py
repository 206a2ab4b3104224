"""The commands ``bench``, which measures what this GPU's record lacks or has of older code, and ``sweep``.

A record has rows, times of steps and libraries, and parts beside these. Both may be interrupted at any time: what is
measured is kept as it comes, and the next run goes on with the rest.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
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
from common.run import messages
from common.run.messages import Outcome, StepResult, Tile
from common.timing import ceilings, measuring, peers, timing

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
            bench = Bench(pairs, *run.inspect_device(), bool(chosen), options.record)
            code = max(code, bench.run())
            failed += [(name, what, why) for what, why in bench.failed.items()]
            continue
        for what, found in PARTS[name].run(arguments.open_record(options.record), chosen, options.problem):
            if isinstance(found, Exception):
                failed.append((name, what, str(found)))
            else:
                code = max(code, found)
    if failed:
        console.say().print(tables.failed(failed))
    return max(code, WRONG if failed else RIGHT)


class Bench:
    """What of a card's record, its own or the ``shipped`` one, is to be measured, and doing it.

    ``pairs``  steps and presets; with ``fresh`` also those whose rows are current
    ``quick``  only a second of launches for each, and no library
    ``libraries``  also the vendor's libraries; without them the ceilings are measured only if they are not current
    ``outcomes``, ``failed``  what came of the steps, and what has no row since it was tried, with the reason
    """

    def __init__(
        self, pairs: list[tuple[Step, str]], gpu: device.Gpu, room_bytes: int, fresh: bool, shipped: bool = False,
        quick: bool = False, libraries: bool = True,
    ) -> None:  # fmt: skip
        record = self._record = Record.open(gpu, arguments.folder(shipped))
        self._gpu, self._quick, self._libraries = gpu, quick, libraries and not quick
        twins = problems.CHANNELS_LAST.values()  # a layer's has the layer's libraries beside it
        presets = [preset for preset in dict.fromkeys(preset for _, preset in pairs) if preset not in twins]
        presets = presets if peers.available() and self._libraries else []
        held = [pair for pair in pairs if not fresh and current.row(record, *pair, room_bytes, not quick)]
        beside = [name for name in presets if not fresh and current.libraries(record, name, room_bytes)]
        self._pairs = [pair for pair in pairs if pair not in held]
        self._presets = [name for name in presets if name not in beside]
        self._held = len(held) + len(beside)
        self._ceilings = (fresh and libraries) or not current.ceilings(record)
        self.outcomes: list[Outcome] = []
        self.failed: dict[str, str] = {}

    def run(self, wrong: Iterable[str] = ()) -> int:
        """Measure, but for the steps named in ``wrong``; each row is written as soon as it is there. Returns the exit
        code."""
        console.say_kept(self._held, "rows")
        pairs = [pair for pair in self._pairs if pair[0].name not in wrong]
        expected = [*["ceilings"] * self._ceilings, *pairs, *self._presets]
        if not expected:
            return RIGHT
        key = self._record.start_run()
        console.say().print("[dim]compiling kernels ahead[/]")
        known = ceilings.kernels_of(self._gpu.compute_capability) if self._ceilings else []
        compiling = [messages.Ask(function=ceilings.compile_kernels, given=one, touches_gpu=False) for one in known]
        run.compile_ahead(pairs, compiling)
        with closing(measuring.measure(pairs, None, self._presets, self._ceilings, self._quick)) as found:
            for kind, one in console.progress("time", found, expected, _line):
                self._keep(kind, one, key)
        self.outcomes, rates = measuring.latest(self.outcomes), self._record.ceilings
        if rates is not None:
            said = f"copy {rates.copy_gbs:,.0f} GB/s, FP32 multiply-add {rates.fma_gflops:,.0f} GFLOP/s"
            console.say().print(f"{escape(self._gpu.name)}: {said}")
            verdicts.print_times(self.outcomes, rates, self._gpu.name)
        if self._libraries:
            console.say_libraries()
        return verdicts.exit_code(self.outcomes, asked=False)

    def _keep(self, kind: str, found: Any, key: str) -> None:
        """Write what came of one measurement, or note why nothing did."""
        if kind == "ceilings":
            self._record.set_ceilings(found, key, timing.MEASURE_VERSION)
        elif kind == "step":
            self.outcomes.append(found)
            if found.status == "right":
                records.record_step(self._record, key, found)
            elif not found.elsewhere:
                why = "; ".join(found.reasons) or found.message or found.status
                self.failed[f"{found.step.name} {found.preset}"] = why
        else:
            preset, result = found
            if result.status == "right":
                records.record_peers(self._record, key, preset, result)
            if result.message:
                self.failed[f"the library {preset}"] = result.message


def _line(entry: tuple[str, Any]) -> str:
    kind, found = entry
    return verdicts.line(found) if kind == "step" else f"{kind}: measured"


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
