"""Steps checked and timed: a lesson's, its edited ones, these again at every save."""

import argparse
import threading
import time
from contextlib import closing

from common.catalog import catalog, sources
from common.catalog.catalog import Step
from common.check import plan, run
from common.commands import arguments, bench, console, edits
from common.commands.console import RIGHT, UNUSABLE
from common.edit import loop
from common.records import records
from common.report import tables
from common.run import isolate
from common.run.messages import Outcome


def parser(lesson: str, own: tuple[str, ...] = ()) -> arguments.Parser:
    """The options of ``python -m lessons.LESSON``; ``own`` are commands of the lesson's, to be named."""
    more = f" {' and '.join(own)} in STEP's place: commands of this lesson." if own else ""
    parser = arguments.Parser(prog=f"python -m lessons.{lesson}", description=f"Run lesson {lesson}.{more}")
    parser.set_defaults(command=_command, lesson=lesson, json=False)
    what = "a step or experiment of this lesson (default: its steps)"
    parser.add_argument("step", nargs="?", metavar="STEP", help=what)
    return arguments.takes(parser, "--problem --sim --watch")


def _command(options: argparse.Namespace) -> int:
    """Run a lesson's steps, or watch them; raises ValueError at a name or preset that does not fit."""
    lesson, name = options.lesson, options.step
    here = [step for step in catalog.everything() if step.lesson == lesson]
    chosen = [step for step in here if (step.name == name if name else not step.experiment)]
    if not chosen:
        has = f"it has {', '.join(step.name for step in here)}; `python -m common grade` takes exercises"
        raise ValueError(f"step {name!r} is not in lesson {lesson}: {has}")
    chosen = [step for step, _ in arguments.pairs(chosen, options.problem)]
    without_gpu = arguments.without_gpu(options.sim)
    edits.keep()
    edits.name_edited_helpers()
    if options.watch:
        return watch(chosen, name is not None, options.problem, without_gpu)
    return _lesson(chosen, arguments.preset_of(chosen if name else [], options.problem), without_gpu)


def _lesson(chosen: list[Step], preset: str | None, without_gpu: bool) -> int:
    """Check steps, time them beside those before, print the table; the edited ones first, stage by stage."""
    isolate.warm()
    edited = [step for step in chosen if not sources.as_shipped(step.path)]
    code = max([run_edited(step, preset, without_gpu) for step in edited], default=RIGHT)
    outcomes: list[Outcome] = []
    if rest := [step for step in chosen if step not in edited]:
        known = run.shipped(rest)
        checking = run.check_steps(rest, without_gpu, seed=plan.new_seed(), brief=known)
        outcomes = list(console.checked(rest, checking))
        console.print_checks(outcomes)
        console.say_shipped(known)
        code = code or console.exit_code(outcomes, asked=False)
    compared = list(dict.fromkeys(one for step in chosen for one in (*catalog.predecessors(step), step)))
    if code == RIGHT and without_gpu:
        console.tell("\nNo GPU here, so nothing is timed. Recorded times of these steps:\n")
        _print_recorded(arguments.pairs(chosen, preset), compared)
    elif code == RIGHT:
        timed = bench.measure_rows(arguments.pairs(compared, preset), fresh=True, libraries=False)
        code = console.exit_code(timed, asked=True)
    console.say_left_out(outcomes)
    return code


def _print_recorded(pairs: list[tuple[Step, str]], compared: list[Step]) -> None:
    """Print each preset's table of the reference card's record."""
    record = records.other(records.REFERENCE_GPU)
    for preset, ladder in {preset: step.ladder for step, preset in pairs}.items():
        wanted = [step for step in compared if step.ladder == ladder]
        if record and any(record.row(preset, step.name) for step in wanted):
            console.say().print(tables.recorded(record, preset, wanted))


# --- edited steps ---


def run_edited(step: Step, preset: str | None, without_gpu: bool, stop: threading.Event | None = None) -> int:
    """Run an edited step, printing each stage as it comes; it enters the history."""
    printed = False
    this = loop.Run(step, preset or catalog.usual_preset(step), without_gpu, stop or threading.Event())
    with closing(this.stages()) as stages:
        for stage in stages:
            printed = printed or console.tell(*loop.printed(stage.outcomes))
            if stage.failed:
                console.print_complaints(stage.failed)
                console.tell(f"[dim]{stage.seconds:.1f} s[/]")
                return console.exit_code(stage.failed, asked=True)
            console.tell(*loop.in_words(step.name, stage))
    if this.verdict == "right":
        return RIGHT
    unfinished, unjudged = "[dim]left unfinished[/]", f"[yellow]{this.verdict}: nothing was judged to be right[/]"
    console.tell(unfinished if this.verdict == "unfinished" else unjudged)
    return UNUSABLE


def watch(steps: list[Step], at_once: bool, preset: str | None, without_gpu: bool) -> int:
    """Run steps whenever their files are saved, until Ctrl-C; the edited ones, or all if ``at_once``, now. A run ends
    early if its file is saved again."""
    pending = [step.path for step in steps if at_once or not sources.as_shipped(step.path)]
    saves = loop.Saves([*(step.path for step in steps), *sources.helpers()])
    isolate.warm()
    console.tell(f"watching {', '.join(step.name for step in steps)}: save a file to run it, Ctrl-C to end")
    try:
        while True:
            pending += [path for path in saves.look() if path not in pending]
            if not pending:
                time.sleep(loop.LOOK_SECONDS)
                continue
            path = pending.pop(0)
            saved = time.strftime("%H:%M:%S", time.localtime(path.stat().st_mtime))
            console.say().rule(f"{path.name}, saved {saved}")
            for step in steps:
                if path == step.path or path in sources.imported_helpers(step.path):
                    run_edited(step, preset, without_gpu, loop.Saves([path]))
    except KeyboardInterrupt:
        console.tell("no longer watching")
    finally:
        isolate.cool()
    return RIGHT
