"""``bench``, which measures what this GPU's record lacks, and ``sweep``: interrupted, they are continued."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

from rich.markup import escape

from common.catalog import cache, catalog, device, problems
from common.catalog.catalog import Step
from common.check import run
from common.commands import arguments, console
from common.commands.console import RIGHT, WRONG
from common.commands.parts import PARTS
from common.records import records
from common.records.records import Record
from common.report import tables
from common.run.messages import Outcome, StepResult, Tile
from common.timing import measuring, peers, tasks
from common.timing.timing import Point, Sweep

ROWS = "rows"  # times of steps and libraries, and the GPU's ceilings


def run_bench(options: argparse.Namespace) -> int:
    known = (ROWS, *PARTS)
    for name in options.part or ():
        if name not in known:
            raise ValueError(f"--part {name!r}: must be one of {', '.join(known)}")
    chosen = [catalog.find(name) for name in options.steps]
    pairs = arguments.pairs(chosen or catalog.everything(), options.problem, every_preset=True, named=bool(chosen))
    device.require_gpu("the bench")
    code = RIGHT
    for name in options.part or (known if options.record and not (chosen or options.problem) else (ROWS,)):
        console.say().rule(name)
        if name == ROWS:
            found = console.exit_code(measure_rows(pairs, bool(chosen), options.record), asked=False)
        else:
            found = PARTS[name].run(arguments.open_record(options.record), chosen, options.problem)
        code = max(code, found)
    return code


class Rows:
    """What is measured for this card's record, the user's or the ``shipped`` one, each row written as soon as it is
    there: with ``fresh`` of all, else of what it lacks. ``outcomes``: what came of the steps."""

    def __init__(self, fresh: bool, shipped: bool = False, quick: bool = False) -> None:
        gpu, self.room_bytes = run.inspect_device()
        self.record, self.fresh, self.quick = Record.open(gpu, arguments.folder(shipped)), fresh, quick
        self.outcomes: list[Outcome] = []

    def lacking(self, pairs: list[tuple[Step, str]]) -> list[tuple[Step, str]]:
        """The steps on presets that are to be measured; of how many others the rows are kept, is said."""
        at = self.room_bytes, not self.quick
        found = [pair for pair in pairs if self.fresh or not records.row_holds(self.record, *pair, *at)]
        console.say_kept(len(pairs) - len(found), "rows")
        return found

    def take(
        self, pairs: list[tuple[Step, str]], presets: Sequence[str] = (), ceilings: bool = False,
        ready: Callable[[Step], object] | None = None,
    ) -> Iterator[str]:  # fmt: skip
        """Measure these pairs (:func:`common.timing.measuring.measure`), the libraries on ``presets`` and the GPU's
        ``ceilings``, and write it; a line for each."""
        if not self.record.run:
            self.record.start_run()
        if ceilings:
            self.record.set_ceilings(measuring.measure_device()[1])
            yield "ceilings: measured"
        with closing(measuring.measure(pairs, None, self.quick, ready)) as found:
            for one in found:
                self.outcomes.append(one)
                if one.status == "right":
                    records.record_step(self.record, one)
                yield console.line(one)
        for preset in presets:
            library = measuring.library(preset)
            if library.rows:
                self.record.keep("rows", preset, library.rows)
            if library.message:
                console.warn(f"the library on {preset}: {library.message}")
            yield f"the library on {preset}: {library.status}"

    def show(self) -> None:
        """Print the times of the steps."""
        rates, gpu = self.record.ceilings, self.record.gpu_name
        if rates is not None:
            said = f"copy {rates.copy_gbs:,.0f} GB/s, FP32 multiply-add {rates.fma_gflops:,.0f} GFLOP/s"
            console.tell(f"{escape(gpu)}: {said}")
            console.print_times(measuring.latest(self.outcomes), rates, gpu)


def measure_rows(
    pairs: list[tuple[Step, str]], fresh: bool, shipped: bool = False, libraries: bool = True
) -> list[Outcome]:
    """Measure :class:`Rows` of steps on presets, and of the libraries on these; what came of the steps. Without
    ``libraries`` the ceilings are measured only if they are not current."""
    rows = Rows(fresh, shipped)
    twins = problems.CHANNELS_LAST.values()  # a layer's has the layer's libraries beside it
    presets = list(dict.fromkeys(preset for _, preset in pairs if preset not in twins))
    pairs = rows.lacking(pairs)
    presets = [one for one in presets if fresh or not records.libraries_hold(rows.record, one, rows.room_bytes)]
    presets = presets if libraries and peers.available() else []
    ceilings = (fresh and libraries) or not records.ceilings_hold(rows.record)
    if expected := [*["ceilings"] * ceilings, *pairs, *presets]:
        with run.Checking([], False, timed=pairs) as compiling:
            found = rows.take(pairs, presets, ceilings, compiling.wait)
            for _ in console.progress("time", found, expected, str):
                pass
        rows.show()
        if libraries and not peers.available():
            console.tell(peers.HOW_TO_GET)
    return measuring.latest(rows.outcomes)


def sweep(options: argparse.Namespace) -> int:
    step = catalog.find(options.step)
    preset = options.problem or problems.DEFAULT_PRESET[step.ladder]
    problems.preset(preset, step.ladder)
    device.require_gpu("a sweep")
    given = str(step.path), step.ladder, problems.preset(preset).shape()
    tunables, shipped = run.ask(step.name, tasks.tunables, *given, on_gpu=False)
    if not tunables:
        raise ValueError(f"{step.name}: has no TUNABLES to sweep")
    record = arguments.open_record(options.record)
    old = record.sweep(preset, step.name)
    points = old.points if old and not records.older(old, step.name) else []
    done = [point.tile for point in points]
    tiles = [tile for tile in measuring.tiles(tunables, shipped, options.values) if tile not in done]
    console.tell(f"{len(points)} points of this sweep are recorded and current, {len(tiles)} are left")
    for tile, result in console.progress("sweep", measuring.sweep(step, preset, tiles), tiles, _swept_line):
        right = result.status == "right"
        why = None if right else result.message or "; ".join(one.message for one in result.findings)
        median_ms = result.time.median_ms if right else None
        points.append(Point(tile=tile, status=result.status, median_ms=median_ms, reason=why))
        entry = Sweep(source=cache.code(step.path), shipped=shipped, points=points)
        record.keep("sweeps", preset, {step.name: entry})
    console.say().print(tables.swept(f"{step.name} on {preset}, {record.gpu_name}", points, shipped))
    return WRONG if any(p.status in ("wrong", "crashed", "timed_out") for p in points) else RIGHT


def _swept_line(point: tuple[Tile, StepResult]) -> str:
    """``BLOCK_M=64 BLOCK_N=64: 2.31 ms``."""
    tile, result = point
    words = " ".join(f"{name}={value}" for name, value in tile.items())
    found = f"{result.time.median_ms:.4g} ms" if result.timing is not None else result.status.replace("_", " ")
    return f"{words}: {found}"
