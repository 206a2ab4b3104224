"""The command line: ``python -m common ...`` and the lessons' ``python -m lessons.NN_name``.

The only module that prints. JSON goes to standard output alone; progress, tables for reading and warnings
go to standard error when JSON is asked for. Exit codes: 0 right, 1 wrong, 2 unusable arguments.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from common.book import catalog, device, exercises, ledger, problems, store
from common.book.catalog import Step
from common.code import occupancy
from common.commands import arguments, flow, selftime
from common.editing import history, loop, saves, shipped, words
from common.grading import folders, grade, referee, source
from common.grading import tables as gradetables
from common.jobs import kept, run, unchanged
from common.jobs.run import Outcome
from common.measure import peers, plan, profiler, sanitizer, timing
from common.microscope import lanes, trace
from common.report import agreement, cardtables, current, drawing, pages, recording, records, tables, tracewords
from common.report.records import Record
from common.workers import isolate
from common.workers.isolate import Result, Task

RIGHT, WRONG, UNUSABLE, UNREAD = 0, 1, 2, 141
_SIGNALLED = 128  # and the signal's number, as a shell has it
_SUSPECTS = 3  # failed steps that are traced for the reason
USER_ERRORS = (
    ValueError, OSError, device.NoGpuError, run.DeviceError, run.ToolError,
    profiler.ProfileError, sanitizer.SanitizerError, lanes.TraceError, history.HistoryError,
)  # fmt: skip

_UNWRITTEN = (errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EBADF)
_ENDING = ("SIGINT", "SIGTERM", "SIGHUP")
_AGAIN_SECONDS = 2.0  # a second signal that comes later than this ends the program at once

Item = TypeVar("Item")
Kept = TypeVar("Kept")
_SHOWN_EVENTS = 30
_LEAST_MEMORY = 0.5  # GiB; with less a child does not get as far as the kernel
_COPIES = 3  # of the operands: float32, and float64 for the oracle
_WIDE = 110
_PHOTO_CODE = [catalog.ROOT / "common" / "report" / name for name in ("photo.py", "charts.py")]


def main(words: Sequence[str] | None = None) -> int:
    """Run a command of ``python -m common``; returns the exit code."""
    options = arguments.read(common_parser(), words)
    return _guarded(lambda: int(options.command(options)), options)


def lesson_main(lesson: str, words: Sequence[str] | None = None) -> int:
    """Run a lesson: check its steps, time them against the previous ones, print the table."""
    options = arguments.read(lesson_parser(lesson), words)
    return _guarded(lambda: int(options.command(options)), options)


def lesson_parser(lesson: str) -> arguments.Parser:
    """The options of ``python -m lessons.LESSON``."""
    parser = arguments.Parser(prog=f"python -m lessons.{lesson}", description=f"Run lesson {lesson}.")
    parser.add_argument(
        "step", nargs="?", metavar="STEP", help="one step or experiment of this lesson (default: all steps)"
    )
    parser.add_argument("--problem", metavar="PRESET", help="preset to time on (default: one per ladder)")
    parser.add_argument("--watch", action="store_true", help="run again whenever a file is saved, until Ctrl-C")
    parser.add_argument("--explain", action="store_true", help="let the one STEP say what it would do, and why")
    parser.add_argument("--shape", metavar='"N=2 C=3 ..."', help="with --explain: this shape, not a preset's")
    parser.set_defaults(command=_lesson_command, parser=parser, lesson=lesson, json=False)
    return parser


def common_parser() -> arguments.Parser:
    """The commands of ``python -m common``, and their options."""
    parser = arguments.Parser(prog="python -m common", description="The workbook's harness.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: Callable[[Any], int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(command=command, parser=sub, json=False)
        return sub

    def takes_steps(sub: argparse.ArgumentParser, which: str = "default: all steps") -> None:
        sub.add_argument("steps", nargs="*", metavar="STEP", help=f"steps, experiments or exercises ({which})")
        sub.add_argument("--file", type=Path, metavar="PATH", help="use this file in the one STEP's place")
        sub.add_argument("--json", action="store_true", help="results as JSON on standard output")

    sub = add("list", _list, "list the steps")
    sub.add_argument("--json", action="store_true", help="as JSON on standard output")

    sub = add("check", _check, "check steps against the oracle")
    takes_steps(sub)
    sub.add_argument("--shape", metavar='"N=2 C=3 ..."', help="check at this shape only")
    sub.add_argument("--sim", action="store_true", help="in the CUDA simulator, even if there is a GPU")
    sub.add_argument("--seed", type=int, metavar="N", help="draw the shapes that differ each time from this seed")

    sub = add("time", _time, "time steps on the GPU")
    takes_steps(sub)
    sub.add_argument("--problem", metavar="PRESET", help="preset (default: one per ladder)")

    sub = add("bench", _bench, "check and time every step and the vendor's libraries, and write the record")
    sub.add_argument("steps", nargs="*", metavar="STEP", help="steps or experiments (default: all)")
    sub.add_argument("--problem", metavar="PRESET", help="this preset only (default: all)")

    sub = add("compile", _compile, "compile every kernel, without a GPU")
    takes_steps(sub)
    sub.add_argument("--problem", metavar="PRESET", help="preset (default: one per ladder)")
    sub.add_argument("--cc", metavar="X.Y", action="append", help="compute capability (default: several)")
    sub.add_argument(
        "--machine-code", action="store_true", help="assemble, and count instructions (default: for 9.0)"
    )
    sub.add_argument("--record", action="store_true", help="write results/machine-code.json (implies --machine-code)")

    sub = add("inspect", _inspect, "show what a kernel became: its registers, occupancy and hot loop, without a GPU")
    sub.add_argument("step", metavar="STEP", help="step, experiment or exercise")
    sub.add_argument("other", nargs="?", metavar="STEP2", help="a second one, to set beside it")
    sub.add_argument("--file", type=Path, metavar="PATH", help="use this file in the one STEP's place")
    sub.add_argument("--problem", metavar="PRESET", help="preset (default: each ladder's)")
    sub.add_argument("--cc", metavar="X.Y", help="compute capability (default: this GPU's, else 9.0)")
    show = sub.add_mutually_exclusive_group()
    show.add_argument("--ptx", action="store_const", const="ptx", dest="show", help="print the PTX")
    show.add_argument("--sass", action="store_const", const="sass", dest="show", help="print all machine code")
    sub.add_argument("--json", action="store_true", help="results as JSON on standard output")

    sub = add("profile", _profile, "read hardware counters with ncu and say what they mean")
    sub.add_argument("steps", nargs="*", metavar="STEP", help="steps or experiments (default: all)")
    sub.add_argument("--problem", metavar="PRESET", help="preset (default: one per ladder)")
    sub.add_argument("--record", action="store_true", help="write the counters to this GPU's record")

    sub = add("sanitize", _sanitize, "run compute-sanitizer's four tools over ragged shapes")
    sub.add_argument("steps", nargs="*", metavar="STEP", help="steps or experiments (default: all)")
    sub.add_argument("--record", action="store_true", help="write the result to this GPU's record")

    sub = add("sweep", _sweep, "time a step over its tile constants; an interrupted sweep goes on")
    sub.add_argument("step", metavar="STEP")
    sub.add_argument("--problem", metavar="PRESET", help="preset (default: the ladder's)")
    sub.add_argument(
        "--values",
        metavar='"NAME=1,2 ..."',
        help="sweep these constants only; the others stay as shipped",
    )

    sub = add("trace", _trace, "run one block on the CPU and report every access to memory, line by line")
    takes_steps(sub, "one; or two, to compare; with --agree any, default: all steps")
    sub.add_argument("--shape", metavar='"M=2 N=3 ..."', help="trace at this shape (default: a small one)")
    sub.add_argument("--block", metavar="X,Y,Z", help="the block to trace (default: one in the middle)")
    sub.add_argument("--figure", type=Path, metavar="OUT", help="draw the accesses as OUT.png and OUT.svg")
    sub.add_argument(
        "--agree", action="store_true", help="compare with the hardware's counters; with a GPU, count anew"
    )
    sub.add_argument("--record", action="store_true", help="with --agree: write both to the record")

    sub = add("diff", _diff, "show what one step changes against another, docstrings left out")
    sub.add_argument("old", metavar="FROM", help="step or experiment")
    sub.add_argument("new", metavar="TO", help="step or experiment")

    sub = add("history", _history, "list what was run, and what came of it")
    sub.add_argument("step", nargs="?", metavar="STEP", help="this step only (default: all)")

    sub = add("restore", _restore, "bring an earlier version of a step back; the present one is saved first")
    sub.add_argument("step", metavar="STEP")
    sub.add_argument(
        "version",
        nargs="?",
        metavar="N|HASH",
        help="as `history STEP` shows them (default: the last that differs from the present one)",
    )

    sub = add("reset", _reset, "bring a lesson's shipped files back; edited ones are saved first")
    sub.add_argument("lesson", nargs="?", metavar="LESSON|STEP", help="such as 03; or one file")

    add("ship", _ship, "take helpers and exercises for shipped as they are now: for who changes them for everybody")
    sub = add("grade", _grade, "grade exercises, a file, or a folder of other people's files")
    sub.add_argument("targets", nargs="*", metavar="TARGET", help="lesson, exercise, file or folder (default: all)")
    sub.add_argument("--json", action="store_true", help="verdicts as JSON on standard output")
    sub.add_argument("--sim", action="store_true", help="in the CUDA simulator, even if there is a GPU")
    sub.add_argument("--seconds", type=float, default=60.0, metavar="S", help="limit for each answer (default: 60)")
    sub.add_argument("--memory", type=float, default=8.0, metavar="GIB", help="limit for each file (default: 8)")
    sub.add_argument("--workers", type=int, metavar="N", help="files at a time (default: one for each processor)")
    sub.add_argument("--out", type=Path, metavar="DIR", help="where a folder's grades.json and grades.md go")

    sub = add("hint", _hint, "say one more hint on an exercise")
    sub.add_argument("exercise", metavar="NUMBER", help="such as 02.3")

    add("progress", _progress_of_exercises, "show which exercises have passed, and the hints used")

    sub = add("charts", _charts, "draw charts and page tables from the records, where anything changed")
    sub.add_argument("--fresh", action="store_true", help="draw all, changed or not")

    sub = add("photo", _photo, "convolve a photograph and draw the feature maps")
    sub.add_argument(
        "step", nargs="?", default="conv2d_naive", metavar="STEP", help="conv2d step (default: conv2d_naive)"
    )
    sub.add_argument("--sim", action="store_true", help="in the CUDA simulator, on a reduced photograph")

    sub = add("selftime", _selftime, "time the main job itself, in a copy: where its seconds go")
    sub.add_argument("--json", action="store_true", help="as JSON on standard output")

    sub = add("all", _all, "check everything, time it if there is a GPU, draw charts and tables: what changed")
    sub.add_argument("--fresh", action="store_true", help="all of it anew, whether anything changed or not")
    return parser


class _Ended(BaseException):
    """A signal other than Ctrl-C's asks the program to end."""


def _guarded(command: Callable[[], int], options: argparse.Namespace) -> int:
    """Turn what a user can mend into one line and exit code 2, and a signal into a tidy end."""
    isolate.reopen()
    try:
        with _signals() as came:
            if sys.stdout is None:
                raise ValueError("standard output is closed")
            with ledger.stage("the command's own process"):
                code = command()
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read has had enough: `| head`
        _drop(sys.stdout)
        return UNREAD
    except USER_ERRORS as error:
        text = str(error) or type(error).__name__
        if isinstance(error, OSError) and error.strerror:
            place = error.filename
            if place is None and error.errno in _UNWRITTEN:  # what is opened is named, what is printed is not
                place = "standard output"
                _drop(sys.stdout)
            text = f"{place}: {error.strerror}" if place else error.strerror
        if options.json and sys.stdout is not None:
            _tell(json.dumps({"error": text}))
        _complain(f"[bold red]error:[/] {escape(text)}")
        return UNUSABLE
    except (KeyboardInterrupt, _Ended):
        number = came[0] if came else signal.SIGINT
        what = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
        with suppress(OSError):  # a terminal that has hung up
            _say(options).print(f"{what}: what was written so far is kept")
            sys.stdout.flush()
        return _SIGNALLED + number


@contextmanager
def _signals() -> Iterator[list[int]]:
    """While open, a signal to end is noted, stops all work that is waited for, and is raised."""
    came: list[int] = []
    moment = 0.0

    def end(number: int, _: object) -> None:
        nonlocal moment
        isolate.close()
        if came and time.monotonic() - moment < _AGAIN_SECONDS:
            return  # the end that the first one began is under way
        if came:
            os._exit(_SIGNALLED + number)
        came.append(number)
        moment = time.monotonic()
        raise KeyboardInterrupt if number == signal.SIGINT else _Ended

    before: dict[int, Any] = {}
    isolate.on_wait = _let_wait
    if threading.current_thread() is threading.main_thread():
        for name in _ENDING:
            number = getattr(signal, name, None)
            # what whoever started this wants ignored (nohup) stays so
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, end)
    try:
        yield came
    finally:
        try:
            if came:
                isolate.cool()
        finally:
            isolate.on_wait = None
            for number, handler in before.items():
                signal.signal(number, handler)


def _let_wait(task: isolate.Task, seconds: float) -> None:
    name = task.get("step") or Path(str(task.get("home") or task.get("path") or task["task"])).stem
    _complain(f"[dim]{escape(str(name))}: no answer yet; it is ended after {seconds:.0f} s[/]")


def _tell(text: str) -> None:
    """Print a last line, if it can be."""
    try:
        print(text, flush=True)
    except OSError:
        _drop(sys.stdout)


def _drop(stream: Any) -> None:
    """What is printed there from now on goes nowhere: the interpreter flushes it as it ends."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _say(options: argparse.Namespace | None = None) -> Console:
    """Where people read: standard output, or standard error beside JSON."""
    return Console(stderr=bool(options and options.json), highlight=False)


def _complain(text: str) -> None:
    try:
        Console(stderr=True, highlight=False).print(text, soft_wrap=True)
    except OSError:  # nobody can be told
        _drop(sys.stderr)


def _list(options: argparse.Namespace) -> int:
    steps = catalog.steps()
    if options.json:
        print(json.dumps([step.as_dict() for step in steps], indent=1))
        return RIGHT
    _say().print(tables.steps(steps))
    return RIGHT


def _check(options: argparse.Namespace) -> int:
    steps = _chosen(options)
    simulated = options.sim or not device.gpu_count()
    shape = None if options.shape is None else _shape_of(steps, options.shape, simulated)
    if options.seed is not None and not 0 <= options.seed < 2**31:
        raise ValueError(f"--seed {options.seed}: must be an integer from 0 to {2**31 - 1}")
    seed = plan.new_seed() if options.seed is None else options.seed
    simulator = _simulator(options.sim, options)
    keeper = loop.Keeper([] if options.file else steps)
    checking = run.check_steps(steps, simulator, shape, options.file, seed)
    outcomes = list(_checked(steps, checking, options.json))
    _note(keeper, outcomes)
    if options.json:
        results = [{"step": o.step.name, **o.result, "shape": o.problem.shape()} for o in outcomes]
        found = {
            "device": "simulator" if simulator else "gpu",
            "right": _exit_code(outcomes, shape is not None) == RIGHT,
            "seed": seed,
            "results": results,
        }
        print(json.dumps(found, indent=1))
    else:
        _say_seed(seed, drawn=shape is None)
        _print_checks(outcomes, options.file)
    return _exit_code(outcomes, shape is not None)


def _say_seed(seed: int, drawn: bool = True) -> None:
    what = "shapes that are drawn anew each time" if drawn else "operands"
    _say().print(f"[dim]the {what} came from seed {seed}: --seed {seed} repeats them[/]")


def _time(options: argparse.Namespace) -> int:
    device.require_gpu("timing")
    steps = _chosen(options)
    pairs = _pairs(steps, options.problem, every_preset=False, named=bool(options.steps))
    gpu, slug, ceilings = run.measure_device()
    keeper = loop.Keeper([] if options.file else steps)
    outcomes = list(_progress("time", run.time_steps(pairs, options.file), pairs, flow.timed, options.json))
    _note(keeper, outcomes)
    if options.json:
        results = [_timed_json(outcome, ceilings) for outcome in outcomes]
        print(json.dumps({"gpu": gpu, "slug": slug, "ceilings": ceilings, "results": results}, indent=1))
    else:
        _print_times(outcomes, ceilings, gpu["name"])
    return _exit_code(outcomes, asked=True)


def _bench(options: argparse.Namespace) -> int:
    device.require_gpu("the bench")
    steps = [catalog.find(name) for name in options.steps] or [*catalog.steps(), *catalog.experiments()]
    pairs = _pairs(steps, options.problem, every_preset=True, named=bool(options.steps))
    bench = _Bench(steps, *run.inspect_device(), fresh=True, pairs=pairs)
    preparing = bench.prepare([])
    try:
        preparing.before_timing()
        return bench.run()
    finally:
        preparing.cancel()


def _compile(options: argparse.Namespace) -> int:
    from common.code import codegen

    steps = _chosen(options)
    assemble = options.machine_code or options.record
    default = (run.CODE_ARCHITECTURE,) if assemble else codegen.ARCHITECTURES
    architectures = tuple(dict.fromkeys(map(_architecture, options.cc or default)))
    if options.record:
        if architectures != default or options.file or options.problem:
            raise ValueError(f"--record: takes one --cc, {run.CODE_ARCHITECTURE}, no --file and no --problem")
        _require_shipped(steps)
    steps = [step for step, _ in _pairs(steps, options.problem, every_preset=False, named=bool(options.steps))]
    compiling = run.compile_steps(
        steps, architectures, assemble, options.file, options.problem, every_preset=options.record
    )
    outcomes = list(_progress("compile", compiling, steps, flow.compiled, options.json))
    if options.json:
        print(json.dumps([{"step": o.step.name, **o.result} for o in outcomes], indent=1))
    else:
        _print_outcomes(tables.compiled(outcomes, architectures, assemble), outcomes)
    for outcome in outcomes if not options.json else []:
        for item in outcome.result.get("kernels", []):
            if item["float64"]:
                _say().print(f"[yellow]{item['kernel']} computes in float64: {escape(item['float64'][0])}[/]")
                break
    if options.record and all(o.status == "right" for o in outcomes):
        recording.record_code(outcomes)
    elif options.record:
        _complain("[yellow]nothing is recorded: not everything compiles[/]")
    return _exit_code(outcomes, asked=True)


def _architecture(text: str) -> str:
    """A compute capability that ``--cc`` names; raises ValueError."""
    if text not in occupancy.LIMITS:
        known = ", ".join(occupancy.LIMITS)
        raise ValueError(f"--cc {text!r}: must be a compute capability such as 9.0: known are {known}")
    return text


def _require_shipped(steps: list[Step]) -> None:
    """Raise ValueError for a step that no record is of."""
    known = {step.name for step in (*catalog.steps(), *catalog.experiments())}
    for step in steps:
        if step.name not in known:
            raise ValueError(f"--record: records are of steps and experiments, and {step.name} is an exercise")


def _inspect(options: argparse.Namespace) -> int:
    options.steps = [options.step, *([] if options.other is None else [options.other])]
    pairs = _pairs(_one_or_two(options), options.problem, every_preset=False, named=True)
    architecture = run.card_architecture() if options.cc is None else _architecture(options.cc)
    making = run.cards(pairs, architecture, options.file, options.show)
    outcomes = list(_quietly("compile", making, pairs))
    found = [(o.step.name, card) for o in outcomes for card in o.result.get("cards", [])]
    say = _say(options)
    if options.json:
        results = [{"step": o.step.name, "problem": o.preset, **o.result} for o in outcomes]
        print(json.dumps({"architecture": architecture, "results": results}, indent=1))
    elif options.show:
        for name, card in found:
            print(f"// {cardtables.title(name, card)}, compute capability {architecture}")
            print(card["text"] if options.show == "ptx" else "\n".join(cardtables.whole(card["text"])))
    else:
        if len(outcomes) > 1 and found:
            say.print(cardtables.side_by_side(found))
        for name, card in found:
            for part in cardtables.full(name, card, listing=len(outcomes) == 1):
                say.print(part)
    for outcome in outcomes:
        for reason in outcome.reasons:
            _complain(f"[bold red]error:[/] {outcome.step.name}: {escape(reason)}")
    return _exit_code(outcomes, asked=True)


def _profile(options: argparse.Namespace) -> int:
    steps = [catalog.find(name) for name in options.steps] or [*catalog.steps(), *catalog.experiments()]
    profiles = run.profile_steps(_pairs(steps, options.problem, every_preset=False, named=bool(options.steps)))
    say = _say()
    for step, preset, profile in profiles:
        for entry in profile["kernels"]:
            say.print(tables.counters(f"{step.name} on {preset}: {entry['kernel']}", profiler.sentences(entry)))
    if options.record:
        record, key = _open_record()
        for step, preset, profile in profiles:
            record.put_profile(preset, step.name, profile, key)
    return RIGHT


def _sanitize(options: argparse.Namespace) -> int:
    steps = [catalog.find(name) for name in options.steps] or [*catalog.steps(), *catalog.experiments()]
    device.require_gpu("the sanitizer run")
    sanitizing = run.sanitize_steps(steps)
    found = list(_progress("sanitize", sanitizing, steps * len(sanitizer.TOOLS), flow.sanitized))
    say = _say()
    say.print(tables.sanitized(found))
    for tool, step, count, report in found:
        if count:
            say.print(f"{step.name}: {tool}: {escape(report)}", soft_wrap=True)
    if options.record:
        record, key = _open_record()
        for tool, step, count, _ in found:
            record.put_sanitizer(tool, step.name, count, catalog.provenance(step.path), key)
    return WRONG if any(count for _, _, count, _ in found) else RIGHT


def _sweep(options: argparse.Namespace) -> int:
    step = catalog.find(options.step)
    preset = options.problem or run.DEFAULT_PRESET[step.ladder]
    problems.preset(preset, step.ladder)
    device.require_gpu("a sweep")
    found = run.tunables(step, preset)
    record, key = _open_record()
    old = record.sweep(preset, step.name)
    points = old["points"] if old and catalog.is_current(old, step.path) else []
    done = [point["tile"] for point in points]
    values = run.narrowed(found["tunables"], found["shipped"], options.values)
    tiles = [tile for tile in run.combinations(values) if tile not in done]
    say = _say()
    if points:
        say.print(f"{len(points)} points of this sweep are already recorded, {len(tiles)} are left")
    for tile, result in _progress("sweep", run.sweep(step, preset, tiles), tiles, flow.swept):
        point: dict[str, Any] = {"tile": tile, "status": result["status"]}
        if result["status"] == "right":
            point["median_ms"] = result["timing"]["median_ms"]
        else:
            point["reason"] = result.get("message") or "; ".join(f["message"] for f in result["findings"])
        points.append(point)
        entry = {"shipped": found["shipped"], "points": points}
        record.put_sweep(preset, step.name, entry | catalog.provenance(step.path), key)
    say.print(tables.swept(f"{step.name} on {preset}, {record.gpu_name}", points, found["shipped"]))
    return WRONG if any(p["status"] in ("wrong", "crashed", "timed_out") for p in points) else RIGHT


def _trace(options: argparse.Namespace) -> int:
    if options.agree:
        return _agree(options)
    if options.record:
        raise ValueError("--record: goes with --agree")
    if len(options.steps) not in (1, 2):
        raise ValueError(f"trace takes one STEP or two, and {len(options.steps)} are named")
    steps = _one_or_two(options)
    stem = None if options.figure is None else _figure_stem(options.figure, steps)
    shape = None if options.shape is None else _shape_of(steps, options.shape, simulator=True)
    choice = {} if options.block is None else {"block": tracewords.block(options.block)}
    pairs = [(step, shape or trace.SHAPES[step.ladder][0]) for step in steps]
    tasks = [trace.task(step, problem, options.file, **choice) for step, problem in pairs]
    found = list(_quietly("trace", trace.results(tasks), steps))
    named = {step.name: one for step, one in zip(steps, found, strict=True)}
    if stem is not None:
        from common.report import (
            charts,  # brings matplotlib
            tracefigures,
        )

        try:
            drawn = charts.save(tracefigures.accesses(found[0]), stem)
        except OSError as error:
            raise ValueError(f"--figure {options.figure}: {error}") from None
        _say(options).print(f"drawn: {drawn}")
    compared = tracewords.comparison(named) if len(named) == 2 else None
    if options.json:
        entries = [{"step": name, **one} for name, one in named.items()]
        print(json.dumps({"steps": entries, "comparison": compared} if compared else entries[0], indent=1))
    else:
        for (step, problem), one in zip(pairs, found, strict=True):
            _print_trace(step, problem, one, shape is None)
        if compared:
            _say().print(escape(compared), soft_wrap=True)
    return WRONG if any(kernel["faults"] for one in found for kernel in one["kernels"]) else RIGHT


def _figure_stem(path: Path, steps: list[Step]) -> Path:
    """What the figure's files are called but for .png and .svg; raises ValueError."""
    if len(steps) != 1:
        raise ValueError(f"--figure {path}: draws one STEP, and {len(steps)} are named")
    if not path.name or path.suffix not in ("", ".png", ".svg"):
        raise ValueError(
            f"--figure {path}: must be a file's name that ends in .png or .svg, or in neither: both are drawn"
        )
    return path.with_suffix("")


def _print_trace(step: Step, problem: problems.Problem, found: dict[str, Any], usual: bool) -> None:
    say = _say()
    say.print(f"{step.name} at {problem}")
    for kernel in found["kernels"]:
        for table in tables.traced(kernel, say.width):
            say.print(table)
        for sentence in tracewords.sentences(kernel):
            say.print(escape(sentence), soft_wrap=True)
    faults = [fault for kernel in found["kernels"] for fault in kernel["faults"]]
    for fault in faults:
        text = f"[bold red]{escape(tracewords.fault_sentence(fault))}[/]\n    {escape(fault['text'])}"
        say.print(text, soft_wrap=True)
    if not faults:
        what = "nothing out of bounds, no race, no uninitialised value stored"
        say.print(f"[green]No fault[/] in what was traced: {what}.", soft_wrap=True)
        if usual:  # the shape is a multiple of the tiles
            ragged = problems.RAGGED[step.ladder][0]
            say.print(f'Guards show at edges that no tile divides: --shape "{ragged}"', soft_wrap=True)


def _agree(options: argparse.Namespace) -> int:
    """Trace anew, and show that beside what the hardware counts: now, or where there is no GPU in the record."""
    for name in ("block", "figure"):
        if getattr(options, name) is not None:
            raise ValueError(f"--{name}: goes with a trace of one block; --agree compares all blocks")
    if options.file and options.record:
        raise ValueError(f"--record: the record is of shipped steps, and --file {options.file} is another file")
    steps = _chosen(options)
    if options.record:
        _require_shipped(steps)
    if options.file:
        steps = [replace(steps[0], path=options.file)]
    pairs = agreement.cases(steps)
    if options.shape is not None:
        shape = _shape_of(steps, options.shape, simulator=True)
        pairs = [(step, shape) for step in steps]
    record, key, known = None, None, None
    if not device.gpu_count():
        record = Record.load(records.RESULTS / f"{records.REFERENCE_GPU}.json")
        known = record.agreement()
        agreement.require_counted(pairs, known, record.gpu_name)
    elif options.record:
        record, key = _open_record()
    found: dict[str, dict[str, Any]] = {}
    for step, problem, entry in _quietly("trace", agreement.refresh(pairs, known), pairs):
        found.setdefault(step.name, {})[str(problem)] = entry
        if options.record and record:
            record.put_agreement(step.name, str(problem), entry, key)
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        say = _say()
        say.print(tables.agreed(*agreement.rows(found, steps), say.width))
    return RIGHT


def _diff(options: argparse.Namespace) -> int:
    old, new = catalog.find(options.old), catalog.find(options.new)
    say = _say()
    colours = {"+": "green", "-": "red", "@": "cyan"}
    lines = list(catalog.difference(old, new))
    for line in lines:
        colour = colours.get(line[0])
        say.print(f"[{colour}]{escape(line)}[/]" if colour else escape(line), soft_wrap=True)
    counts = [sum(line[0] == sign for line in lines) for sign in "-+"]
    say.print(f"{counts[0]} lines go, {counts[1]} come; docstrings and indentation are left out")
    return RIGHT


def _history(options: argparse.Namespace) -> int:
    say = _say()
    everything = options.step is None
    files = shipped.everything() if everything else [_file_of(options.step)]
    name = None if everything else files[0].stem
    found, broken = history.events(name), history.broken(name)
    for text in broken[:_SUSPECTS]:
        _complain(f"[bold red]error:[/] {escape(text)}")
    if not found:
        if not broken:
            say.print("the history is empty: each run of an edited step enters it")
        return UNUSABLE if broken else RIGHT
    present = {path.stem: history.sha(history.read(path)) for path in files if path.exists()}
    known = {event.step for event in found}
    texts = {path.stem: shipped.text(path) for path in files if path.stem in known}
    originals = {name: history.sha(text) for name, text in texts.items() if text is not None}
    if len(found) > _SHOWN_EVENTS and everything:
        say.print(f"the last {_SHOWN_EVENTS} of {len(found)} events; all of a step: python -m common history STEP")
        found = found[-_SHOWN_EVENTS:]
    say.print(words.events(found, present, originals, named=everything))
    return UNUSABLE if broken else RIGHT


def _file_of(text: str) -> Path:
    """The file of a step, experiment, helper or exercise, by its name, its path or an exercise's number."""
    with suppress(ValueError):
        return exercises.find(text).path
    return shipped.find(Path(text).stem if text.endswith(".py") else text)


def _restore(options: argparse.Namespace) -> int:
    path = _file_of(options.step)
    event = history.choose(path, options.version)
    saved = history.put_back(path, history.stored(path.name, event.source), "restored")
    say = _say()
    say.print(f"{path.stem}: restored as of {words.when(event)} (N {event.number}, {event.source[:8]})")
    for name, digest in event.helpers.items():
        say.print(f"it ran with an edited {name}.py: python -m common restore {name} {digest[:8]}", soft_wrap=True)
    if saved and saved != event.source:
        say.print(f"what stood there was saved: python -m common restore {path.stem} {saved[:8]}", soft_wrap=True)
    return RIGHT


def _reset(options: argparse.Namespace) -> int:
    lessons, wanted = catalog.lessons(), options.lesson or ""
    chosen = [name for name in lessons if wanted in (name, name[:2])]
    try:
        files = shipped.files(chosen[0]) if chosen else [_file_of(wanted)]
    except ValueError:
        numbers = ", ".join(name[:2] for name in lessons)
        text = f"LESSON={wanted}: must be one of {numbers}, or the name of a step, a helper or an exercise"
        raise ValueError(text) from None
    say = _say()
    unchanged = []
    for path in files:
        original = shipped.text(path)
        if original is None:
            _complain(f"{path.stem}: left as it is: neither git nor .workbook has the shipped version")
        elif path.exists() and history.read(path) == original:
            unchanged.append(path.stem)
        else:
            saved = history.put_back(path, original, "reset")
            kept = f"; your version: python -m common restore {path.stem} {saved[:8]}" if saved else ""
            say.print(f"{path.stem}: reset{kept}", soft_wrap=True)
    if unchanged:
        say.print(f"as shipped: {', '.join(unchanged)}", soft_wrap=True)
    _name_edited_helpers()
    return RIGHT


def _grade(options: argparse.Namespace) -> int:
    for name, value in (("--seconds", options.seconds), ("--memory", options.memory), ("--workers", options.workers)):
        if value is not None and not 0 < value < 1e6:
            raise ValueError(f"{name} {value:g}: must be more than 0, and less than a million")
    if options.memory < _LEAST_MEMORY:
        raise ValueError(f"--memory {options.memory:g}: must be at least {_LEAST_MEMORY}: Python and Numba take that")
    files, folder, left_out = _to_grade(options.targets)
    if folder is None and options.out is not None:
        raise ValueError(f"--out {options.out}: goes with a folder of files to grade, and none is named")
    if not files:
        raise ValueError(f"{folder}: no Python files in it" if folder else "there are no exercises yet")
    out = options.out or folder
    if folder is not None and out is not None:
        _make_folder(out)
    limits = referee.Limits(
        seconds=options.seconds, cpu_seconds=referee.cpu_seconds(options.seconds),
        memory_bytes=int(options.memory * 2**30),
    )  # fmt: skip
    simulator = _simulator(options.sim, options)
    gpu, _, ceilings = (None, "", None) if simulator else run.measure_device()
    grader = grade.Grader(grade.Machine(gpu, ceilings), limits)
    own = grade.own_sources(files)
    workers = options.workers or os.cpu_count() or 1
    _keep_shipped()
    _name_edited_helpers("kernels are graded on the shipped one")
    found: dict[int, grade.Grade] = {}
    try:
        with closing(grader.all(files, workers)) as coming:
            for number, verdict in _progress("grade", coming, files, flow.graded, options.json):
                found[number] = verdict
    finally:
        files = [files[number] for number in sorted(found)]
        grades = [found[number] for number in sorted(found)]
        # of those that are done, if it is interrupted; and whatever cannot be kept, verdicts are told
        written = _kept(lambda: folders.report(grades, out)) if folder is not None and out is not None else None
        _kept(lambda: grade.remember(files, grades, own))
    if options.json:
        print(json.dumps({"device": "simulator" if simulator else "gpu", "grades": [g.as_dict() for g in grades]}))
    say = _say(options)
    say.print(gradetables.grades(grades))
    for one in grades:
        if one.reasons or one.notes:
            exercise = "" if one.target == one.name else one.target
            say.print(escape(" ".join(filter(None, (one.student, exercise, one.name)))))
        for text in (*one.reasons, *one.notes):
            say.print(f"  {escape(text)}", soft_wrap=True)
        if folder is None and not one.passed and one.target[:1].isdigit():
            say.print(f"  a hint: python -m common hint {one.target}")
    for text in left_out:
        say.print(f"[yellow]not graded[/]: {escape(text)}", soft_wrap=True)
    if written:
        say.print(escape(f"written: {', '.join(source.printable(str(path)) for path in written)}"), soft_wrap=True)
    return RIGHT if all(one.passed for one in grades) else WRONG


def _ship(_: argparse.Namespace) -> int:
    _say().print(f"written: {shipped.note().relative_to(catalog.ROOT)}")
    return RIGHT


def _kept(action: Callable[[], Kept]) -> Kept | None:
    """What is written beside the verdicts; it is said if that fails."""
    try:
        return action()
    except (OSError, ValueError, history.HistoryError) as error:
        _complain(f"[yellow]not kept: {escape(str(error))}[/]")
        return None


def _make_folder(folder: Path) -> None:
    """Make a folder that results will go to, before any work; raises ValueError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(
            f"{folder}: must be a folder to write to, or name one with --out: {error.strerror}"
        ) from None


def _to_grade(targets: Sequence[str]) -> tuple[list[folders.Submission], Path | None, list[str]]:
    """Files to grade, the folder of other people's files if that is what was named, and what is left out of it."""
    if len(targets) == 1 and Path(targets[0]).is_dir() and not _own(Path(targets[0])):
        found, left_out = folders.submissions(Path(targets[0]))
        return found, Path(targets[0]), left_out
    files: list[folders.Submission] = []
    for target in targets:
        path = Path(target)
        if path.is_dir() and not _own(path):
            raise ValueError(f"{target}: a folder of files to grade must be named alone")
        if path.suffix == ".py":
            if not path.is_file():
                raise ValueError(f"{target}: no such file")
            files.append(folders.Submission(path))
        else:
            own = _own(path)
            if not own and os.sep in target:
                raise ValueError(f"{target}: no such folder")
            files += [folders.Submission(one.path) for one in exercises.chosen(own or target)]
    if not targets:
        files = [folders.Submission(one.path) for one in exercises.everything()]
    return list(dict.fromkeys(files)), None, []


def _own(path: Path) -> str:
    """The lesson that a folder of this workbook is, or whose exercises it holds; empty if neither."""
    for lesson in catalog.lessons():
        if path.resolve() in (catalog.LESSONS / lesson, catalog.LESSONS / lesson / "exercises"):
            return lesson
    return ""


def _hint(options: argparse.Namespace) -> int:
    one = exercises.find(options.exercise)
    number, text = exercises.State().hint(one)
    _say().print(
        f"{one.number} {escape(one.title)}: hint {number} of {len(one.hints)}\n  {escape(text)}", soft_wrap=True
    )
    return RIGHT


def _progress_of_exercises(_: argparse.Namespace) -> int:
    _say().print(tables.progress(exercises.everything(), exercises.State()))
    return RIGHT


def _open_record() -> tuple[Record, str]:
    """This GPU's record, and the key of a run started now."""
    gpu = run.describe_device()
    record = Record.open(gpu.as_dict(), gpu.slug)
    return record, record.start_run()


def _charts(options: argparse.Namespace) -> int:
    return _redraw(options.fresh)


def _photo(options: argparse.Namespace) -> int:
    step = catalog.find(options.step)
    if step.ladder != "conv2d":
        raise ValueError(f"step {step.name!r}: the photograph needs a conv2d step, and this is a {step.ladder} step")
    # there is one picture: what is kept of another step's holds no more
    _draw_photo(step, _simulator(options.sim, options), known=kept.Kept("photo", fresh=True))
    return RIGHT


def _selftime(options: argparse.Namespace) -> int:
    found = selftime.measure()
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        for name, entry in found["runs"].items():
            _say().print(tables.selftimed(name, entry))
    return RIGHT if all(entry["code"] == RIGHT for entry in found["runs"].values()) else WRONG


def _all(options: argparse.Namespace) -> int:
    say = _say()
    steps = [*catalog.steps(), *catalog.experiments()]
    simulator = device.gpu_count() == 0
    say.rule("check every step" + (" in the simulator: no GPU was found" if simulator else ""))
    card = None if simulator else run.inspect_device()
    engine = [card[0].name, card[0].driver] if card else "simulator"
    checks = unchanged.Outcomes("check", engine, options.fresh)
    known = checks.known(steps)
    rest = [step for step in steps if step.name not in known]
    bench = _Bench(steps, *card, options.fresh) if card else None
    preparing = bench.prepare(rest) if bench else None
    workers = run.Workers() if simulator else None
    compiling = _Compiling(steps, options.fresh, workers) if workers else None
    try:
        outcomes = _check_rest(steps, known, rest, checks, simulator, workers, compiling.begin if compiling else None)
        code = _exit_code(outcomes, asked=False)
        wrong = {o.step.name for o in outcomes if not _acceptable(o, asked=False)}
        for name in sorted(wrong):
            say.print(f"[yellow]{name} is not timed: it is not right[/]")
        if bench and preparing:
            say.rule("time every step")
            preparing.before_timing()
            code = max(code, bench.run(wrong, drawing.Beside(options.fresh)))
        if compiling:
            say.rule("compile every kernel")
            code = max(code, compiling.finish())
    finally:
        if preparing:
            preparing.cancel()
        if workers:
            workers.end()
    say.rule("photograph")
    if "conv2d_naive" in wrong:
        say.print("[yellow]the photograph is left out: conv2d_naive is not right[/]")
    else:
        _draw_photo(
            catalog.find("conv2d_naive"), simulator, card[0] if card else None, kept.Kept("photo", options.fresh)
        )
    say.rule("charts and tables")
    if simulator:
        say.print(
            "No GPU here: the charts and tables come from the records in results/, measured on the cards they name."
        )
    return max(code, _redraw(options.fresh))


def _check_rest(
    steps: list[Step],
    known: dict[str, list[Outcome]],
    rest: list[Step],
    checks: unchanged.Outcomes,
    simulator: bool,
    workers: run.Workers | None = None,
    begun: Callable[[], None] | None = None,
) -> list[Outcome]:
    """Check the steps whose verdict is not known; the outcomes of all. ``workers``, ``begun``: see check_steps."""
    _say_kept(len(known), "verdict", "verdicts")
    found = dict(known)
    if rest:
        keeper = loop.Keeper(rest)
        seed = plan.new_seed()
        # without a GPU they are compiled after it
        checking = run.check_steps(
            rest, simulator, seed=seed, compiled=False, workers=workers, begun=begun or (lambda: None)
        )
        for outcome in _checked(rest, checking):
            found.setdefault(outcome.step.name, []).append(outcome)
        _note(keeper, [outcome for step in rest for outcome in found.get(step.name, [])])
        for step in rest:
            mine = found.get(step.name, [])
            if mine and all(_acceptable(outcome, asked=False) for outcome in mine):
                checks.keep(mine)
    outcomes = [outcome for step in steps for outcome in found.get(step.name, [])]
    if rest:
        _say_seed(seed)
        _print_checks(outcomes)
    return outcomes


class _Compiling:
    """Compiles every kernel that is not known to compile, for the usual architectures, when ``workers`` are free."""

    def __init__(self, steps: list[Step], fresh: bool, workers: run.Workers) -> None:
        from common.code import codegen

        self._architectures = codegen.ARCHITECTURES
        self._steps, self._workers = steps, workers
        self._results = unchanged.Outcomes("compile", self._architectures, fresh)
        self._known = self._results.known(steps)
        self._rest = [step for step in steps if step.name not in self._known]
        self._compiling: Iterator[Outcome] | None = None

    def begin(self) -> None:
        """Ask the workers for it."""
        self._compiling = run.compile_steps(self._rest, self._architectures, False, workers=self._workers)

    def finish(self) -> int:
        """Wait, and print what came of it; the exit code."""
        _say_kept(len(self._known), "compilation", "compilations")
        if not self._rest:
            return RIGHT
        if self._compiling is None:
            self.begin()
        assert self._compiling is not None
        for outcome in _progress("compile", self._compiling, self._rest, flow.compiled):
            self._known[outcome.step.name] = [outcome]
            if outcome.status == "right":
                self._results.keep([outcome])
        outcomes = [outcome for step in self._steps for outcome in self._known[step.name]]
        _print_outcomes(tables.compiled(outcomes, self._architectures, False), outcomes)
        return _exit_code(outcomes, asked=True)


def _say_kept(count: int, one: str, many: str) -> None:
    if count:
        is_are, what = ("is as new as its", one) if count == 1 else ("are as new as their", many)
        was = "was" if count == 1 else "were"
        _say().print(f"{count} {what} {is_are} code and {was} kept")


class _Bench:
    """What of a card's record is to be measured, and doing it."""

    def __init__(self, steps: list[Step], gpu: device.Gpu, room_bytes: int, fresh: bool, **chosen: Any) -> None:
        self._record = Record.open(gpu.as_dict(), gpu.slug)
        self._gpu = gpu
        pairs = chosen.get("pairs") or _pairs(steps, None, every_preset=True)
        # a layer's channels-last twin has the layer's libraries beside it
        twins = problems.CHANNELS_LAST.values()
        presets = [preset for preset in dict.fromkeys(preset for _, preset in pairs) if preset not in twins]
        presets = presets if peers.available() else []
        held = [] if fresh else current.rows(self._record, pairs, room_bytes)
        libraries = [] if fresh else current.libraries(self._record, presets, room_bytes)
        self._held = len(held) + len(libraries)
        self._pairs = [pair for pair in pairs if pair not in held]
        self._presets = [preset for preset in presets if preset not in libraries]
        self._ceilings = fresh or not current.ceilings(self._record)

    def prepare(self, checked: list[Step]) -> run.Preparing:
        """Compile what will be timed, and what is checked before, in the background."""
        wanted: dict[Step, list[problems.Problem]] = {step: [] for step, _ in self._pairs}
        for step, preset in self._pairs:
            wanted[step].append(problems.preset(preset))
        for step in checked:
            wanted.setdefault(step, []).append(problems.FIRST[step.ladder])
        return run.Preparing(wanted, self._gpu)

    def run(self, wrong: Iterable[str] = (), beside: drawing.Beside | None = None) -> int:
        """Measure what is to be measured, but for the steps named; each row is written as soon as it is there.

        What is drawn ``beside`` has ended when this returns.
        """
        try:
            code = self._run(wrong)
        except BaseException:
            if beside:
                beside.cancel()
            raise
        _say_drawn(beside.wait() if beside else [])
        return code

    def _run(self, wrong: Iterable[str]) -> int:
        say = _say()
        _say_kept(self._held, "row", "rows")
        pairs = [pair for pair in self._pairs if pair[0].name not in wrong]
        if not (pairs or self._presets or self._ceilings):
            return RIGHT
        record, key = self._record, self._record.start_run()
        measuring = run.measure(pairs, None, self._presets, self._ceilings)
        total = [*pairs, *self._presets, *(["ceilings"] if self._ceilings else [])]
        outcomes: list[Outcome] = []
        for kind, found in _progress("time", measuring, total, flow.measured):
            if kind == "ceilings":
                if found["status"] != "right":
                    raise run.DeviceError(f"the GPU could not be measured: {found['message']}")
                record.set_ceilings({**found["ceilings"], "measure": timing.MEASURE_VERSION}, key)
            elif kind == "step":
                outcomes.append(found)
                if found.status == "right":
                    recording.record_step(record, key, found)
            else:
                preset, result = found
                if result["status"] == "right":
                    recording.record_peers(record, key, preset, result)
                else:
                    say.print(f"[yellow]the library on {preset}: {escape(result['message'])}[/]")
        ceilings = record.ceilings
        assert ceilings is not None
        say.print(
            f"{self._gpu.name}: copy {ceilings['copy_gbs']:,.0f} GB/s, "
            f"FP32 multiply-add {ceilings['fma_gflops']:,.0f} GFLOP/s"
        )
        _print_times(outcomes, ceilings, self._gpu.name)
        if not peers.available():
            say.print(peers.HOW_TO_GET)
        return _exit_code(outcomes, asked=False)


def _chosen_of(lesson: str, name: str | None, preset: str | None) -> list[Step]:
    """The steps of a lesson to run; raises ValueError at a name or preset that does not fit."""
    here = [step for step in (*catalog.steps(), *catalog.experiments()) if step.lesson == lesson]
    chosen = [step for step in here if (step.name == name if name else not step.experiment)]
    if not chosen:
        raise ValueError(f"step {name!r} is not in lesson {lesson}: it has {', '.join(step.name for step in here)}")
    if preset:
        ladder = problems.preset(preset).ladder
        chosen = [step for step in chosen if step.ladder == ladder]
        if not chosen:
            raise ValueError(
                f"problem {preset!r} is a {ladder} problem: lesson {lesson} has no such step to run on it"
            )
    return chosen


def _lesson(lesson: str, name: str | None, preset: str | None) -> int:
    say = _say()
    chosen = _chosen_of(lesson, name, preset)
    simulator = _simulator(False, None)
    loop.get_ready(simulator)
    _keep_shipped()
    meaning = "so is every step that imports it, and here only its Python runs, not what it compiles to"
    _name_edited_helpers(meaning if simulator else "", chosen)
    edited = [step for step in chosen if not shipped.as_shipped(step.path)]
    code = RIGHT
    for step in edited:  # first, and alone: their verdicts are waited for
        loop.get_ready(simulator)
        code = max(code, _run_edited(step, preset, simulator))
    pairs = _pairs(_with_predecessors(chosen), preset, every_preset=False)
    timing_them = None if simulator or code != RIGHT else _Lesson(pairs)
    # compiled while the checks run, and done before anything is timed
    wanted = _pairs(_with_last(chosen), preset, every_preset=False) if code == RIGHT else []
    compiling = run.CardsBeside(wanted)
    rest = [step for step in chosen if step not in edited]
    try:
        if rest:
            outcomes = list(_checked(rest, run.check_steps(rest, simulator, seed=plan.new_seed())))
            _print_checks(outcomes)
            code = max(code, _exit_code(outcomes, asked=False))
        if code != RIGHT:
            return code
        cards = compiling()
    finally:
        compiling.cancel()
        if timing_them and code != RIGHT:
            timing_them.cancel()
    if simulator:
        say.print("\nNo GPU here, so nothing is timed. The records hold what these steps reached elsewhere:\n")
        _print_recorded(chosen, preset)
        _print_cards(cards, {})
        return code
    assert timing_them
    timed = timing_them.run()
    medians = {(o.step.name, o.preset): o.result["timing"]["median_ms"] for o in timed if o.status == "right"}
    _print_cards(cards, medians)
    return _exit_code(timed, asked=True)


class _Lesson:
    """The kernels that a lesson times are compiled from the start, while others are checked."""

    def __init__(self, pairs: list[tuple[Step, str]]) -> None:
        self._pairs = pairs
        self._gpu, _ = run.inspect_device()
        self._record = Record.open(self._gpu.as_dict(), self._gpu.slug)
        wanted = {step: [problems.preset(preset)] for step, preset in pairs}
        self._preparing = run.Preparing(wanted, self._gpu)

    def run(self) -> list[Outcome]:
        """Time them, and print the tables; the ceilings are measured unless the record has them."""
        self._preparing.before_timing()
        ceilings = self._record.ceilings if current.ceilings(self._record) else None
        timed: list[Outcome] = []
        try:
            measuring = run.measure(self._pairs, ceilings=ceilings is None)
            for kind, found in _progress("time", measuring, self._pairs, flow.measured):
                if kind == "step":
                    timed.append(found)
                elif found["status"] == "right":
                    ceilings = found["ceilings"]
                else:
                    raise run.DeviceError(f"the GPU could not be measured: {found['message']}")
        finally:
            self.cancel()
        assert ceilings is not None
        _print_times(timed, ceilings, self._gpu.name)
        return timed

    def cancel(self) -> None:
        self._preparing.cancel()


def _run_edited(step: Step, preset: str | None, simulator: bool, stop: threading.Event | None = None) -> int:
    """Run an edited step, printing each stage as it comes; it enters the history."""
    say = _say()
    this = loop.Run(step, preset or run.DEFAULT_PRESET[step.ladder], simulator, stop or threading.Event())
    code = UNUSABLE
    with closing(this.stages()) as stages:
        for stage in stages:
            if stage.failed:
                _print_complaints(stage.failed)
                say.print(f"[dim]{stage.seconds:.1f} s[/]")
                code = _exit_code(stage.failed, asked=True)
                break
            code = RIGHT
            for line in words.stage(step.name, stage, this.best):
                say.print(line, soft_wrap=True)
    if not this.finished:
        say.print("[dim]saved again: left unfinished[/]")
    for warning in this.warnings:
        _complain(f"[yellow]{escape(warning)}[/]")
    return code


def _name_edited_helpers(meaning: str = "", steps: Sequence[Step] | None = None) -> None:
    """Say which of the lessons' helpers, or of those that ``steps`` import, are edited, and what that means."""
    wanted = None if steps is None else {path for step in steps for path in catalog.imported_helpers(step.path)}
    for path in shipped.edited_helpers():
        if wanted is not None and path.is_file() and path not in wanted:
            continue
        _complain(
            f"[yellow]lessons/{path.name} is edited: {meaning or 'so is every step that imports it'}; "
            f"python -m common reset {path.stem} brings the shipped one back, and keeps yours[/]"
        )


def _keep_shipped() -> None:
    """Where no git keeps them, copy the shipped files before they are edited."""
    try:
        shipped.keep_copies()
    except history.HistoryError as error:
        _complain(f"[yellow]the shipped files are not kept: {escape(str(error))}[/]")


def _note(keeper: loop.Keeper, outcomes: list[Outcome]) -> None:
    """Enter a command's outcomes in the history; what cannot be kept is said and stops nothing."""
    keeper.note(outcomes)
    for warning in keeper.warnings[:1]:
        _complain(f"[yellow]{escape(warning)}[/]")


def _watch(lesson: str, name: str | None, preset: str | None) -> int:
    """Run a lesson's steps whenever their files are saved: the edited ones, or the one named, at once."""
    say = _say()
    chosen = _chosen_of(lesson, name, preset)
    simulator = _simulator(False, None)
    _keep_shipped()
    _name_edited_helpers(steps=chosen)
    stops: dict[Path, threading.Event] = {}

    def saved(path: Path) -> None:
        if path in stops:
            stops[path].set()

    def concerned(path: Path) -> list[Step]:
        """The steps that a saved file is, or that import it."""
        return [step for step in chosen if path == step.path or path in catalog.imported_helpers(step.path)]

    pending = [step.path for step in chosen if name or not shipped.as_shipped(step.path)]
    with saves.Saves([*(step.path for step in chosen), *shipped.helpers()], saved) as files:
        loop.get_ready(simulator)
        say.print(f"watching {', '.join(step.name for step in chosen)}: save a file to run it, Ctrl-C to end")
        try:
            while True:
                for path in pending or files.wait():
                    stops[path] = threading.Event()
                    say.rule(f"{path.name}, saved {time.strftime('%H:%M:%S', time.localtime(path.stat().st_mtime))}")
                    for step in concerned(path):
                        _run_edited(step, preset, simulator, stops[path])
                        loop.get_ready(simulator)
                pending = []
        except KeyboardInterrupt:
            say.print("no longer watching")
        finally:
            isolate.cool()
    return RIGHT


def _lesson_command(options: argparse.Namespace) -> int:
    """Run a lesson, watch it, or let a step of it explain itself; raises ValueError if options do not go together."""
    if options.explain:
        return _explain(options)
    if options.shape is not None:
        raise ValueError(f"--shape {options.shape!r}: goes with --explain; a lesson runs at --problem PRESET")
    return (_watch if options.watch else _lesson)(options.lesson, options.step, options.problem)


def _explain(options: argparse.Namespace) -> int:
    if options.watch:
        raise ValueError("--explain: goes without --watch: it runs no step")
    if options.step is None:
        raise ValueError("--explain: takes the one STEP that is to explain itself")
    if options.shape is not None and options.problem is not None:
        raise ValueError(f"--shape {options.shape!r}: goes without --problem {options.problem}: name one of them")
    (step,) = _chosen_of(options.lesson, options.step, options.problem)
    if options.shape is not None:
        problem = problems.parse_shape(step.ladder, options.shape)
    else:
        problem = problems.preset(options.problem or run.DEFAULT_PRESET[step.ladder], step.ladder)
    _say().print(run.explain(step, problem, _simulator(False, None)), soft_wrap=True, markup=False)
    return RIGHT


def _redraw(fresh: bool = False) -> int:
    """Draw what changed, and write the tables of all records into the pages."""
    say = _say()
    found = list(records.all_records())
    reference = next((r for r in found if r.slug == records.REFERENCE_GPU), None)
    everything, wanted = drawing.units(), drawing.stale(fresh)
    _say_kept(len(everything) - len(wanted), "set of charts", "sets of charts")
    drawn = list(_progress("charts", drawing.draw(wanted), wanted, flow.drawn)) if wanted else []
    code = _say_drawn(drawn)
    for record in found:
        summary = records.RESULTS / f"{record.slug}.md"
        text = pages.summary(record)
        if not summary.exists() or summary.read_text(encoding="utf-8") != text:
            store.write(summary, text)
        day = max((run["date"] for run in record.data["runs"].values()), default="an unknown day")
        say.print(
            f"{record.gpu_name}, measured up to {day}: charts in results/charts/{record.slug}/, "
            f"tables in results/{summary.name}"
        )
    if not found:
        say.print("no records in results/: a run with a GPU writes the first")
    for path in pages.update(reference):
        say.print(f"tables rewritten: {path.relative_to(catalog.ROOT)}")
    return code


def _say_drawn(found: Iterable[tuple[Task, Result]]) -> int:
    """Say what could not be drawn."""
    code = RIGHT
    for unit, result in found:
        if result["status"] != "right":
            _complain(f"[bold red]error:[/] {escape(unit['name'])}: not drawn: {escape(str(result['message']))}")
            code = WRONG
    return code


def _draw_photo(step: Step, simulator: bool, gpu: device.Gpu | None = None, known: kept.Kept | None = None) -> None:
    """Draw the photograph's feature maps, unless those that are ``known`` hold."""
    name, slug = "the CUDA simulator", "simulator"
    if not simulator:
        gpu = gpu or run.describe_device()
        name, slug = gpu.name, gpu.slug
    key = kept.key(name, gpu and gpu.driver, kept.harness(), kept.digest(_PHOTO_CODE), catalog.provenance(step.path))
    drawn = known.get(step.name, key) if known else None
    if drawn and Path(drawn).is_file():
        _say().print("the feature maps are as new as their code and were kept")
        return
    from common.report import photo  # brings matplotlib

    try:
        with ledger.stage("photo"):
            path = photo.draw(step, simulator, name, slug)
    except photo.PhotoError as error:
        raise ValueError(str(error)) from None
    if known:
        known.put(step.name, key, str(path))
    _say().print(f"feature maps drawn: {path.relative_to(catalog.ROOT)}")


def _chosen(options: argparse.Namespace) -> list[Step]:
    """The steps or exercises named, or all steps; with --file exactly one must be named."""
    steps = [_step_of(name) for name in options.steps]
    if options.file is not None:
        if len(steps) != 1:
            raise ValueError(f"--file {options.file}: name the one STEP it stands in for; {len(steps)} are named")
        if options.file.is_dir():
            raise ValueError(f"--file {options.file}: is a folder; name a file in it")
        if not options.file.is_file():
            raise ValueError(f"--file {options.file}: there is no such file")
        options.file = options.file.resolve()
    return list(dict.fromkeys(steps)) or [*catalog.steps(), *catalog.experiments()]


def _one_or_two(options: argparse.Namespace) -> list[Step]:
    """The one step that is named, or the two that are to be compared; raises ValueError."""
    steps = _chosen(options)
    if len(steps) < len(options.steps):
        raise ValueError(f"STEP2 {options.steps[1]}: is STEP itself: name another to compare it with")
    return steps


def _shape_of(steps: list[Step], text: str, simulator: bool) -> problems.Problem:
    """The problem that ``--shape`` names, for steps of one ladder; raises ValueError."""
    ladders = {step.ladder for step in steps}
    if len(ladders) != 1:
        raise ValueError(f"--shape {text!r}: name steps of one ladder; these are of {', '.join(sorted(ladders))}")
    problem = problems.parse_shape(ladders.pop(), text)
    needed, room = _COPIES * problem.least_bytes, isolate.memory_limit(not simulator)
    if needed > room:
        raise ValueError(
            f"--shape {text!r}: takes {needed / 1e9:,.0f} GB here, and a process may take {room / 1e9:,.0f}"
        )
    return problem


def _step_of(name: str) -> Step:
    """The step or experiment of this name, or the kernel of the exercise; raises CatalogError."""
    one = next((one for one in exercises.everything() if one.ladder and name in (one.name, one.number)), None)
    if one is None:
        return catalog.find(name)
    return Step(one.name, one.lesson, one.ladder, None, one.path, one.title, experiment=True)


def _pairs(steps: list[Step], preset: str | None, every_preset: bool, named: bool = False) -> list[tuple[Step, str]]:
    """Each step with each preset it is to be timed on; experiments only with their ladder's default.

    Raises ValueError if the preset is unknown, or does not fit a step that was ``named``.
    """
    pairs = []
    for step in steps:
        if preset is not None:
            if named and problems.preset(preset).ladder != step.ladder:
                fitting = ", ".join(problems.presets_of(step.ladder))
                ladder = problems.preset(preset).ladder
                raise ValueError(f"problem {preset!r} is a {ladder} problem: presets for {step.name} are {fitting}")
            if problems.preset(preset).ladder == step.ladder:
                pairs.append((step, preset))
        elif every_preset and not step.experiment:
            pairs += [(step, name) for name in catalog.presets(step)]
        else:
            pairs.append((step, run.DEFAULT_PRESET[step.ladder]))
    if not pairs:
        problems.preset(str(preset), steps[0].ladder)  # raises, naming the presets that fit
    return pairs


def _simulator(asked: bool, options: argparse.Namespace | None) -> bool:
    """Use the simulator? Says so when it was not asked for."""
    if asked:
        return True
    if device.gpu_count() == 0:
        _say(options).print("no GPU was found: the kernels run in the CUDA simulator")
        return True
    return False


def _acceptable(outcome: Outcome, asked: bool) -> bool:
    """Right, or a shape the step says it does not take (unless that very shape was asked for)."""
    return outcome.status == "right" or (outcome.status == "refused" and not asked)


def _exit_code(outcomes: Iterable[Outcome], asked: bool) -> int:
    outcomes = list(outcomes)
    statuses = {outcome.status for outcome in outcomes if not _acceptable(outcome, asked)}
    if statuses & {"wrong", "crashed", "timed_out"}:
        return WRONG
    # a step that refuses every shape has shown nothing
    checked = {o.step.name for o in outcomes if o.status != "refused"}
    return UNUSABLE if statuses or {o.step.name for o in outcomes} - checked else RIGHT


def _progress(
    what: str, items: Iterator[Item], expected: Sequence[Any], line: flow.Line | None = None, aside: bool = False
) -> Iterator[Item]:
    """Say how far ``items`` are as they come in: a bar on a terminal, else a line for each, if there is a ``line``.

    Lines go to standard output, or to standard error where JSON has that (``aside``).
    """
    stream = sys.stderr if aside else sys.stdout
    if sys.stderr.isatty() and (aside or stream.isatty()):
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=len(expected))
            for item in items:
                bar.advance(task)
                yield item
        return
    say = Console(stderr=aside, highlight=False)
    say.print(f"{what}: {len(expected)} to do")
    for item in items:
        if line:
            say.print(escape(line(item)), soft_wrap=True)
        yield item


def _quietly(what: str, items: Iterator[Item], expected: Sequence[Any]) -> Iterator[Item]:
    """As :func:`_progress`, for what takes seconds: without a terminal nothing is said."""
    return _progress(what, items, expected) if sys.stderr.isatty() and sys.stdout.isatty() else items


def _checked(steps: list[Step], outcomes: Iterator[Outcome], aside: bool = False) -> Iterator[Outcome]:
    """The outcomes of a check, step by step as they come; how far it is is said a step at a time."""
    grouped = flow.by_step(outcomes)
    for group in _progress("check", grouped, steps, flow.checked, aside):
        yield from group


def _print_checks(outcomes: list[Outcome], file: Path | None = None) -> None:
    _say().print(tables.checks(outcomes))
    first = {o.step.name: o for o in reversed(outcomes) if o.status in ("wrong", "crashed")}
    found = {
        name: tracewords.suspicion(
            outcome.step, outcome.problem, file, " ".join(fault["what"] for fault in outcome.faults)
        )
        for name, outcome in list(first.items())[:_SUSPECTS]
    }
    _print_complaints(outcomes, {name: suspicion for name, suspicion in found.items() if suspicion})


def _print_times(outcomes: list[Outcome], ceilings: dict[str, Any], gpu: str) -> None:
    say = _say()
    for preset in dict.fromkeys(outcome.preset for outcome in outcomes):
        rows = [o for o in outcomes if o.preset == preset]
        _print_outcomes(tables.times(rows, ceilings, gpu, say.width), rows)
        for outcome in rows:
            if outcome.preset and outcome.status == "right" and outcome.problem != problems.preset(outcome.preset):
                say.print(
                    f"[yellow]{outcome.step.name}: {outcome.problem} ran; all of {preset} does not fit this card[/]"
                )


def _print_cards(cards: list[Outcome] | str, medians: dict[tuple[str, str | None], float]) -> None:
    """What the kernels take, a line each; or why that is not known."""
    say = _say()
    if isinstance(cards, str):
        say.print(f"[yellow]the kernels' registers and occupancy are left out: {escape(cards)}[/]")
        return
    rows = [
        (outcome.step.name, card, medians.get((outcome.step.name, outcome.preset)))
        for outcome in cards
        for card in outcome.result.get("cards", [])
    ]
    if rows:
        say.print(cardtables.short(rows, say.width))
    for outcome in cards:
        for reason in outcome.reasons:
            say.print(f"[yellow]{outcome.step.name} has no card: {escape(reason)}[/]", soft_wrap=True)


def _print_recorded(steps: list[Step], preset: str | None) -> None:
    say = _say()
    for record in records.all_records():
        for name in dict.fromkeys(preset or run.DEFAULT_PRESET[step.ladder] for step in steps):
            ladder = problems.preset(name).ladder
            wanted = _with_predecessors([step for step in steps if step.ladder == ladder])
            if any(record.row(name, step.name) for step in wanted):
                say.print(tables.recorded(record, name, wanted, say.width))


def _print_outcomes(table: Table, outcomes: list[Outcome]) -> None:
    """A table, then what is wrong, each reason on lines of its own."""
    say = _say()
    say.print(table)
    _print_complaints(outcomes)


def _print_complaints(outcomes: list[Outcome], suspicions: dict[str, tuple[str, str]] | None = None) -> None:
    """What is wrong and what to look at; what cannot be used goes to standard error.

    ``suspicions`` are what a trace found of each step's first failure (:func:`common.report.tracewords.suspicion`).
    """
    say = _say()
    for outcome, text in words.told(outcomes, min(say.width, _WIDE), suspicions):
        if outcome.status in ("refused", "unusable"):
            _complain(text)
        else:
            say.print(text, soft_wrap=True)


def _with_predecessors(steps: list[Step]) -> list[Step]:
    """The steps, each after those it is compared with."""
    found: list[Step] = []
    for step in steps:
        found += [s for s in (*catalog.predecessors(step), step) if s not in found]
    return found


def _with_last(steps: list[Step]) -> list[Step]:
    """The steps, each after the one it is compared with first."""
    found: list[Step] = []
    for step in steps:
        found += [s for s in (*catalog.predecessors(step)[-1:], step) if s not in found]
    return found


def _timed_json(outcome: Outcome, ceilings: dict[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = {"step": outcome.step.name, "problem": outcome.preset, **outcome.result}
    if outcome.status == "right":
        figures = records.derive(outcome.problem, outcome.result["timing"]["median_ms"], ceilings)
        entry.update(
            gflops=figures.gflops,
            gbs=figures.gbs,
            floor_ms=figures.floor_ms,
            percent_of_floor=figures.percent_of_floor,
        )
    return entry
