"""``python -m lessons.NN_name``: check a lesson, time it, compare, and again at every save."""

from __future__ import annotations

import argparse
import threading
import time
from contextlib import closing
from pathlib import Path

from rich.markup import escape

from common.catalog import catalog, problems, sources
from common.catalog.catalog import Step
from common.check import plan
from common.commands import arguments, choosing, console, edits, flow, verdicts
from common.commands.console import RIGHT, UNUSABLE
from common.edit import history, loop, saves, shipped, words
from common.jobs import run
from common.jobs.run import Outcome
from common.records import current, recording
from common.records.records import Record
from common.run import isolate
from common.timing import timing
from common.timing.ceilings import Ceilings


def parser(lesson: str, own: tuple[str, ...] = ()) -> arguments.Parser:
    """The options of ``python -m lessons.LESSON``; ``own`` are commands of the lesson's, to be named."""
    more = f" {' and '.join(own)} in STEP's place: commands of this lesson." if own else ""
    parser = arguments.Parser(prog=f"python -m lessons.{lesson}", description=f"Run lesson {lesson}.{more}")
    parser.add_argument(
        "step", nargs="?", metavar="STEP", help="one step or experiment of this lesson (default: all steps)"
    )
    parser.add_argument("--problem", metavar="PRESET", help="preset to time on (default: what shows the step)")
    parser.add_argument("--sim", action="store_true", help="as if there were no GPU")
    parser.add_argument("--watch", action="store_true", help="run again whenever a file is saved, until Ctrl-C")
    parser.add_argument("--explain", action="store_true", help="let the one STEP say what it would do, and why")
    parser.add_argument("--shape", metavar='"N=2 C=3 ..."', help="with --explain: this shape, not a preset's")
    parser.set_defaults(command=_lesson_command, parser=parser, lesson=lesson, json=False)
    return parser


def _chosen_of(lesson: str, name: str | None, preset: str | None) -> list[Step]:
    """The steps of a lesson to run; raises ValueError at a name or preset that does not fit."""
    here = [step for step in catalog.everything() if step.lesson == lesson]
    chosen = [step for step in here if (step.name == name if name else not step.experiment)]
    if not chosen:
        raise ValueError(f"step {name!r} is not in lesson {lesson}: it has {', '.join(step.name for step in here)}")
    if preset:
        ladder = problems.preset(preset).ladder
        chosen = [step for step in chosen if step.ladder == ladder]
        if not chosen:
            said = f"lesson {lesson} has no such step to run on it"
            raise ValueError(f"problem {preset!r} is a {ladder} problem: {said}")
    return chosen


def _lesson(lesson: str, name: str | None, preset: str | None, simulated: bool) -> int:
    say = console.say()
    chosen = _chosen_of(lesson, name, preset)
    preset = choosing.preset_of(chosen if name else [], preset)
    simulator = choosing.simulator(simulated, None)
    isolate.warm()
    keep_shipped()
    meaning = "so is every step that imports it, and here only its Python runs, not what it compiles to"
    edits.name_edited_helpers(meaning if simulator else "", chosen)
    edited = [step for step in chosen if not shipped.as_shipped(step.path)]
    code = RIGHT
    for step in edited:  # first, and alone: their verdicts are waited for
        code = max(code, _run_edited(step, preset, simulator))
    pairs = choosing.pairs(choosing.with_predecessors(chosen), preset, every_preset=False)
    timing_them = None if simulator or code != RIGHT else Lesson(pairs)
    # compiled while the checks run, and done before anything is timed
    needed = choosing.with_predecessors(chosen, last=True)
    wanted = choosing.pairs(needed, preset, every_preset=False) if code == RIGHT else []
    compiling = run.CardsBeside(wanted)
    rest = [step for step in chosen if step not in edited]
    left_out: list[Outcome] = []
    try:
        if rest:
            outcomes = list(verdicts.checked(rest, run.check_steps(rest, simulator, seed=plan.new_seed())))
            verdicts.print_checks(outcomes)
            left_out = [outcome for outcome in outcomes if outcome.left_out]
            code = max(code, verdicts.exit_code(outcomes, asked=False))
        if code != RIGHT:
            verdicts.say_left_out(left_out)
            return code
        cards = compiling()
    finally:
        compiling.cancel()
        if timing_them and code != RIGHT:
            timing_them.cancel()
    if simulator:
        say.print("\nNo GPU here, so nothing is timed. The records hold what these steps reached:\n")
        verdicts.print_recorded(chosen, preset)
        verdicts.print_cards(cards, {})
        return code
    assert timing_them
    timed = timing_them.run()
    medians = {(o.step.name, o.preset): o.result["timing"].median_ms for o in timed if o.status == "right"}
    verdicts.print_cards(cards, medians)
    verdicts.say_left_out(left_out)
    return verdicts.exit_code(timed, asked=True)


class Lesson:
    """The kernels that a lesson times are compiled from the start, while others are checked."""

    def __init__(self, pairs: list[tuple[Step, str]]) -> None:
        self._pairs = pairs
        self._gpu, _ = run.inspect_device()
        self._record = Record.open(self._gpu)
        wanted = {step: [problems.preset(preset)] for step, preset in pairs}
        self._preparing = run.Preparing(wanted, self._gpu)

    def run(self) -> list[Outcome]:
        """Time them into the user's record, and print the tables; the ceilings are measured unless that has them."""
        self._preparing.before_timing()
        ceilings: Ceilings | None = self._record.ceilings if current.ceilings(self._record) else None
        timed: list[Outcome] = []
        key = self._record.start_run()
        try:
            measuring = run.measure(self._pairs, ceilings=ceilings is None)
            for kind, found in console.progress("time", measuring, self._pairs, flow.measured):
                if kind == "step":
                    timed.append(found)
                    if found.status == "right":
                        recording.record_step(self._record, key, found)
                elif found["status"] == "right":
                    ceilings = found["ceilings"]
                    self._record.set_ceilings(found["ceilings"], key, timing.MEASURE_VERSION)
                else:
                    raise run.DeviceError(f"the GPU could not be measured: {found['message']}")
        finally:
            self.cancel()
        assert ceilings is not None
        timed = run.latest(timed)
        verdicts.print_times(timed, ceilings, self._gpu.name)
        return timed

    def cancel(self) -> None:
        self._preparing.cancel()


def _run_edited(step: Step, preset: str | None, simulator: bool, stop: threading.Event | None = None) -> int:
    """Run an edited step, printing each stage as it comes; it enters the history."""
    say = console.say()
    this = loop.Run(step, preset or catalog.usual_preset(step), simulator, stop or threading.Event())
    code = UNUSABLE
    with closing(this.stages()) as stages:
        printed: list[str] = []
        for stage in stages:
            if not printed:
                printed = words.printed(stage.outcomes)
                for line in printed:
                    say.print(line, soft_wrap=True, highlight=False)
            if stage.failed:
                verdicts.print_complaints(stage.failed)
                say.print(f"[dim]{stage.seconds:.1f} s[/]")
                code = verdicts.exit_code(stage.failed, asked=True)
                break
            code = RIGHT
            for line in words.stage(step.name, stage, this.best):
                say.print(line, soft_wrap=True)
    if code == RIGHT and this.verdict not in ("right", "unfinished"):
        say.print(f"[yellow]{this.verdict}: nothing was judged to be right[/]")
        code = UNUSABLE
    if this.verdict == "unfinished":
        say.print("[dim]saved again: left unfinished[/]")
    for warning in this.warnings:
        console.complain(f"[yellow]{escape(warning)}[/]")
    return code


def keep_shipped() -> None:
    """Where no git keeps them, copy the shipped files before they are edited."""
    try:
        shipped.keep_copies()
    except history.HistoryError as error:
        console.complain(f"[yellow]the shipped files are not kept: {escape(str(error))}[/]")


def _watch(lesson: str, name: str | None, preset: str | None, simulated: bool) -> int:
    """Run a lesson's steps whenever their files are saved: the edited ones, or the one named, at once."""
    say = console.say()
    chosen = _chosen_of(lesson, name, preset)
    simulator = choosing.simulator(simulated, None)
    keep_shipped()
    edits.name_edited_helpers(steps=chosen)
    stops: dict[Path, threading.Event] = {}

    def saved(path: Path) -> None:
        if path in stops:
            stops[path].set()

    def concerned(path: Path) -> list[Step]:
        """The steps that a saved file is, or that import it."""
        return [step for step in chosen if path == step.path or path in sources.imported_helpers(step.path)]

    pending = [step.path for step in chosen if name or not shipped.as_shipped(step.path)]
    with saves.Saves([*(step.path for step in chosen), *shipped.helpers()], saved) as files:
        isolate.warm()
        say.print(f"watching {', '.join(step.name for step in chosen)}: save a file to run it, Ctrl-C to end")
        try:
            while True:
                for path in pending or files.wait():
                    stops[path] = threading.Event()
                    say.rule(f"{path.name}, saved {time.strftime('%H:%M:%S', time.localtime(path.stat().st_mtime))}")
                    for step in concerned(path):
                        _run_edited(step, preset, simulator, stops[path])
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
    return (_watch if options.watch else _lesson)(options.lesson, options.step, options.problem, options.sim)


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
        problem = problems.preset(options.problem or catalog.usual_preset(step), step.ladder)
    console.say().print(
        run.explain(step, problem, choosing.simulator(options.sim, None)), soft_wrap=True, markup=False
    )
    return RIGHT
