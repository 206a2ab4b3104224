"""``python -m lessons.NN_name``: check a lesson, time it, compare, and again at every save."""

from __future__ import annotations

import argparse

from common.catalog import catalog, problems, shipped
from common.catalog.catalog import Step
from common.check import plan, run
from common.commands import arguments, bench, console, edits, verdicts
from common.commands.console import RIGHT
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
        return edits.watch(steps, options.step is not None, options.problem, without_gpu)
    return _lesson(steps, arguments.preset_of(steps if options.step else [], options.problem), without_gpu)


def _lesson(chosen: list[Step], preset: str | None, without_gpu: bool) -> int:
    """Check steps, time them beside those before, print the table; the edited ones first, stage by stage."""
    isolate.warm()
    edits.name_edited_helpers()
    edited = [step for step in chosen if not shipped.as_shipped(step.path)]
    code = RIGHT
    for step in edited:  # first, and alone: their verdicts are waited for
        code = max(code, edits.run_edited(step, preset, without_gpu))
    rest = [step for step in chosen if step not in edited]
    known, outcomes = run.shipped(rest), list[Outcome]()
    if rest:
        checking = run.check_steps(rest, without_gpu, seed=plan.new_seed(), brief=known)
        outcomes = list(verdicts.checked(rest, checking))
        verdicts.print_checks(outcomes)
        verdicts.say_shipped(known)
    code = code or verdicts.exit_code(outcomes, asked=False)
    if code != RIGHT:
        verdicts.say_left_out(outcomes)
        return code
    if without_gpu:
        console.tell("\nNo GPU here, so nothing is timed. Recorded times of these steps:\n")
        _print_recorded(chosen, preset)
    else:
        pairs = arguments.pairs(_with_predecessors(chosen), preset)
        timed = bench.measure_rows(pairs, fresh=True, libraries=False)
        code = verdicts.exit_code(timed, asked=True)
    verdicts.say_left_out(outcomes)
    return code


def _with_predecessors(steps: list[Step]) -> list[Step]:
    """The steps, each after those it is compared with."""
    return list(dict.fromkeys(one for step in steps for one in (*catalog.predecessors(step), step)))


def _print_recorded(steps: list[Step], preset: str | None) -> None:
    """Print each preset's table of one record: of a card of the user's own, else of the reference card."""
    known = [*records.all_records(records.OWN), records.other(records.REFERENCE_GPU)]
    for name in dict.fromkeys(preset or problems.DEFAULT_PRESET[step.ladder] for step in steps):
        ladder = problems.preset(name).ladder
        wanted = _with_predecessors([step for step in steps if step.ladder == ladder])
        having = [record for record in known if record and any(record.row(name, step.name) for step in wanted)]
        for record in having[:1]:
            console.say().print(tables.recorded(record, name, wanted))
