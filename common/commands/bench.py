"""The commands that measure on the GPU: ``bench`` what its record lacks or has of older code, ``time``, and
``sweep``, which times a step with other tile constants.

A record has rows, times of steps and libraries, and parts beside these. ``bench`` and ``sweep`` may be interrupted at
any time: what is measured is kept as it comes, and the next run goes on with the rest.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import chain
from typing import Any

from msgspec.structs import asdict
from rich.markup import escape

from common.catalog import catalog, device, problems, sources
from common.catalog.catalog import Step
from common.check import run
from common.commands import arguments, console, edits
from common.commands.arguments import Opened
from common.commands.console import RIGHT, WRONG
from common.commands.parts import PARTS, Part, named
from common.records import current, records
from common.records.entries import Point, Sweep
from common.records.records import Record
from common.report import tables
from common.run import messages
from common.run.messages import Outcome, StepResult, Tile
from common.timing import ceilings, measuring, peers, timing, tools
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

    sub = known.add("time", _time, "time steps on the GPU")
    arguments.takes_steps(sub)
    arguments.takes_preset(sub, "one per ladder")

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
        say.print("[dim]compiling kernels ahead[/]")
        known = ceilings.kernels_of(self._gpu.compute_capability) if self._ceilings else []
        compiling = [messages.Ask(function=ceilings.compile_kernels, given=one, touches_gpu=False) for one in known]
        run.compile_ahead(pairs, compiling)
        found = measuring.measure(pairs, None, self._presets, self._ceilings, self._quick)
        with closing(found):
            for kind, one in console.progress("time", found, names, console.measured_line):
                self._keep(kind, one, key)
                if kind == "step":
                    self.outcomes.append(one)
        self.outcomes, rates = measuring.latest(self.outcomes), self._record.ceilings
        if rates is not None:
            said = f"copy {rates.copy_gbs:,.0f} GB/s, FP32 multiply-add {rates.fma_gflops:,.0f} GFLOP/s"
            say.print(f"{escape(self._gpu.name)}: {said}")
            console.print_times(self.outcomes, rates, self._gpu.name)
        if self._libraries:
            console.say_libraries()
        return console.exit_code(self.outcomes, asked=False)

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


# --- single steps ---


def _time(options: argparse.Namespace) -> int:
    device.require_gpu("timing")
    steps = arguments.chosen(options)
    pairs = arguments.pairs(steps, options.problem, every_preset=False, named=bool(options.steps))
    gpu, rates = measuring.measure_device()
    edits.keep([] if options.file else steps)
    times = measuring.time_steps(pairs, options.file)
    outcomes = measuring.latest(console.progress("time", times, pairs, console.timed_line, options.json))
    if options.json:
        results = [_timed_json(outcome, rates) for outcome in outcomes]
        found = {"gpu": gpu, "slug": gpu.slug, "ceilings": rates, "results": results}
        console.print_json(found)
    else:
        console.print_times(outcomes, rates, gpu.name)
    return console.exit_code(outcomes, asked=True)


def _timed_json(outcome: Outcome, rates: ceilings.Ceilings) -> dict[str, object]:
    entry: dict[str, object] = {"step": outcome.step.name, "problem": outcome.preset, **outcome.told()}
    if outcome.status == "right":
        figures = records.derive(outcome.problem, outcome.time.median_ms, rates, outcome.step.precision)
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
