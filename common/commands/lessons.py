"""``python -m lessons.NN_name``: check a lesson, time it, compare; its edited steps, and again at every save."""

from __future__ import annotations

import argparse
import threading
import time
from contextlib import closing

from common.catalog import catalog, problems, shipped, sources
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
    return arguments.takes(parser, "step? --problem --sim --watch")


def _command(options: argparse.Namespace) -> int:
    """Run a lesson's steps, or watch them; raises ValueError at a name or preset that does not fit."""
    lesson, name = options.lesson, options.step
    here = [step for step in catalog.everything() if step.lesson == lesson]
    chosen = [step for step in here if (step.name == name if name else not step.experiment)]
    if not chosen:
        raise ValueError(f"step {name!r} is not in lesson {lesson}: it has {', '.join(step.name for step in here)}")
    steps = [step for step, _ in arguments.pairs(chosen, options.problem)]
    without_gpu = arguments.without_gpu(options.sim)
    edits.keep()
    if options.watch:
        edits.name_edited_helpers()
        return watch(steps, options.step is not None, options.problem, without_gpu)
    return _lesson(steps, arguments.preset_of(steps if options.step else [], options.problem), without_gpu)


def _lesson(chosen: list[Step], preset: str | None, without_gpu: bool) -> int:
    """Check steps, time them beside those before, print the table; the edited ones first, stage by stage."""
    isolate.warm()
    edits.name_edited_helpers()
    edited = [step for step in chosen if not shipped.as_shipped(step.path)]
    code = RIGHT
    for step in edited:  # first, and alone: their verdicts are waited for
        code = max(code, run_edited(step, preset, without_gpu))
    rest = [step for step in chosen if step not in edited]
    known, outcomes = run.shipped(rest), list[Outcome]()
    if rest:
        checking = run.check_steps(rest, without_gpu, seed=plan.new_seed(), brief=known)
        outcomes = list(console.checked(rest, checking))
        console.print_checks(outcomes)
        console.say_shipped(known)
    code = code or console.exit_code(outcomes, asked=False)
    if code != RIGHT:
        console.say_left_out(outcomes)
        return code
    if without_gpu:
        console.tell("\nNo GPU here, so nothing is timed. Recorded times of these steps:\n")
        _print_recorded(chosen, preset)
    else:
        pairs = arguments.pairs(_with_predecessors(chosen), preset)
        timed = bench.measure_rows(pairs, fresh=True, libraries=False)
        code = console.exit_code(timed, asked=True)
    console.say_left_out(outcomes)
    return code


def _with_predecessors(steps: list[Step]) -> list[Step]:
    """The steps, each after those it is compared with."""
    return list(dict.fromkeys(one for step in steps for one in (*catalog.predecessors(step), step)))


def _print_recorded(steps: list[Step], preset: str | None) -> None:
    """Print each preset's table of the reference card's record."""
    record = records.other(records.REFERENCE_GPU)
    for name in dict.fromkeys(preset or problems.DEFAULT_PRESET[step.ladder] for step in steps):
        ladder = problems.preset(name).ladder
        wanted = _with_predecessors([step for step in steps if step.ladder == ladder])
        if record and any(record.row(name, step.name) for step in wanted):
            console.say().print(tables.recorded(record, name, wanted))


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
    pending = [step.path for step in steps if at_once or not shipped.as_shipped(step.path)]
    saves = loop.Saves([*(step.path for step in steps), *shipped.helpers()])
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
                    run_edited(step, preset, without_gpu, loop.SavedAgain(path))
    except KeyboardInterrupt:
        console.tell("no longer watching")
    finally:
        isolate.cool()
    return RIGHT
