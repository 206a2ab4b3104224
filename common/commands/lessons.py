"""``python -m lessons.NN_name``: check a lesson, time it, compare, and again at every save."""

from __future__ import annotations

import argparse
import threading
import time
from pathlib import Path

from rich.markup import escape

from common.catalog import catalog, problems, sources
from common.catalog.catalog import Step
from common.check import plan
from common.commands import arguments, console, edits, verdicts
from common.commands.bench import Bench
from common.commands.console import RIGHT
from common.edit import loop, shipped
from common.jobs import compiling, measuring, run, unchanged
from common.jobs.run import Outcome
from common.records import records
from common.report import kerneltables, tables
from common.run import isolate


def parser(lesson: str, own: tuple[str, ...] = ()) -> arguments.Parser:
    """The options of ``python -m lessons.LESSON``; ``own`` are commands of the lesson's, to be named."""
    more = f" {' and '.join(own)} in STEP's place: commands of this lesson." if own else ""
    parser = arguments.Parser(prog=f"python -m lessons.{lesson}", description=f"Run lesson {lesson}.{more}")
    parser.add_argument(
        "step", nargs="?", metavar="STEP", help="one step or experiment of this lesson (default: all steps)"
    )
    parser.add_argument("--problem", metavar="PRESET", help="preset to time on (default: what shows the step)")
    arguments.takes_sim(parser)
    parser.add_argument("--watch", action="store_true", help="run again whenever a file is saved, until Ctrl-C")
    parser.add_argument("--explain", action="store_true", help="let the one STEP say what it would do, and why")
    parser.add_argument("--shape", metavar='"N=2 C=3 ..."', help="with --explain: this shape, not a preset's")
    parser.set_defaults(command=_lesson_command, lesson=lesson, json=False)
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
    chosen = _chosen_of(lesson, name, preset)
    preset = arguments.preset_of(chosen if name else [], preset)
    simulator = arguments.simulator(simulated, None)
    isolate.warm()
    edits.keep_shipped()
    meaning = "so is every step that imports it, and here only its Python runs, not what it compiles to"
    edits.name_edited_helpers(meaning if simulator else "", chosen)
    edited = [step for step in chosen if not shipped.as_shipped(step.path)]
    code = RIGHT
    for step in edited:  # first, and alone: their verdicts are waited for
        code = max(code, edits.run_edited(step, preset, simulator))
    rest = [step for step in chosen if step not in edited]
    outcomes, of_rest = _check(rest, simulator)
    code = code or of_rest
    if code != RIGHT:
        verdicts.say_left_out(outcomes)
        return code
    needed = arguments.with_predecessors(chosen, last=True)
    found = _summaries(arguments.pairs(needed, preset, every_preset=False))
    if simulator:
        console.say().print("\nNo GPU here, so nothing is timed. The records hold what these steps reached:\n")
        _print_recorded(chosen, preset)
        _print_summaries(found, {})
        return code
    pairs = arguments.pairs(arguments.with_predecessors(chosen), preset, every_preset=False)
    bench = Bench(pairs, *run.inspect_device(), fresh=True, libraries=False)
    bench.run()
    medians = {(o.step.name, o.preset): o.time.median_ms for o in bench.outcomes if o.status == "right"}
    _print_summaries(found, medians)
    verdicts.say_left_out(outcomes)
    return verdicts.exit_code(bench.outcomes, asked=True)


def _summaries(pairs: list[tuple[Step, str]]) -> list[Outcome] | str:
    """Cards of the kernels for this GPU; or why machine code cannot be had."""
    try:
        return list(console.quietly("compile", compiling.summaries(pairs, compiling.summary_architecture()), pairs))
    except compiling.ToolError as error:
        return str(error)


def _print_summaries(cards: list[Outcome] | str, medians: dict[tuple[str, str | None], float]) -> None:
    """What the kernels take, a line each; or why that is not known."""
    say = console.say()
    if isinstance(cards, str):
        say.print(f"[yellow]the kernels' registers and occupancy are left out: {escape(cards)}[/]")
        return
    rows = [
        (outcome.step.name, card, medians.get((outcome.step.name, outcome.preset)))
        for outcome in cards
        for card in outcome.cards
    ]
    if rows:
        say.print(kerneltables.short(rows))
    for outcome in cards:
        for reason in outcome.reasons:
            say.print(f"[yellow]{outcome.step.name} has no card: {escape(reason)}[/]", soft_wrap=True)


def _print_recorded(steps: list[Step], preset: str | None) -> None:
    say = console.say()
    for record in records.all_records():
        for name in dict.fromkeys(preset or problems.DEFAULT_PRESET[step.ladder] for step in steps):
            ladder = problems.preset(name).ladder
            wanted = arguments.with_predecessors([step for step in steps if step.ladder == ladder])
            if any(record.row(name, step.name) for step in wanted):
                say.print(tables.recorded(record, name, wanted))


def _check(steps: list[Step], simulator: bool) -> tuple[list[Outcome], int]:
    """Check steps and print what came of it; the outcomes and the exit code."""
    if not steps:
        return [], RIGHT
    known = unchanged.shipped(steps)
    checking = run.check_steps(steps, simulator, seed=plan.new_seed(), brief=known)
    outcomes = list(verdicts.checked(steps, checking))
    verdicts.print_checks(outcomes)
    verdicts.say_shipped(known)
    return outcomes, verdicts.exit_code(outcomes, asked=False)


def _watch(lesson: str, name: str | None, preset: str | None, simulated: bool) -> int:
    """Run a lesson's steps whenever their files are saved: the edited ones, or the one named, at once."""
    say = console.say()
    chosen = _chosen_of(lesson, name, preset)
    simulator = arguments.simulator(simulated, None)
    edits.keep_shipped()
    edits.name_edited_helpers(steps=chosen)
    stops: dict[Path, threading.Event] = {}

    def saved(path: Path) -> None:
        if path in stops:
            stops[path].set()

    def concerned(path: Path) -> list[Step]:
        """The steps that a saved file is, or that import it."""
        return [step for step in chosen if path == step.path or path in sources.imported_helpers(step.path)]

    pending = [step.path for step in chosen if name or not shipped.as_shipped(step.path)]
    with loop.Saves([*(step.path for step in chosen), *shipped.helpers()], saved) as files:
        isolate.warm()
        say.print(f"watching {', '.join(step.name for step in chosen)}: save a file to run it, Ctrl-C to end")
        try:
            while True:
                for path in pending or files.wait():
                    stops[path] = threading.Event()
                    say.rule(f"{path.name}, saved {time.strftime('%H:%M:%S', time.localtime(path.stat().st_mtime))}")
                    for step in concerned(path):
                        edits.run_edited(step, preset, simulator, stops[path])
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
        measuring.explain(step, problem, arguments.simulator(options.sim, None)), soft_wrap=True, markup=False
    )
    return RIGHT
