"""The command ``all``: what has changed of all steps is checked, timed with a GPU, and drawn."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from common.catalog import catalog, lessontext
from common.catalog.catalog import Step
from common.check import plan, run
from common.commands import arguments, bench, console, edits, steps
from common.records import current
from common.run.messages import Outcome
from common.timing import measuring


def do_all(options: argparse.Namespace) -> int:
    say, every = console.say(), catalog.everything()
    without_gpu = arguments.without_gpu(options.sim)
    recorded = {} if options.fresh else run.shipped(every)
    if without_gpu:  # that the compiler works here, one step shows; the others' compilations are of the record, too
        recorded.pop(every[0].name, None)
    say.rule("check every step on the CPU" if without_gpu else "check and time every step")
    outcomes, timed = check_changed(every, recorded, without_gpu, options.fresh)
    say.rule("charts and tables")
    if all(outcome.fine for outcome in outcomes if outcome.step.name == lessontext.read(catalog.LESSONS).photo):
        steps.draw_photo(without_gpu, options.fresh)
    drawn = steps.redraw(options.fresh)
    console.say_left_out(outcomes)
    return max(drawn, *(console.exit_code(found, asked=False) for found in (outcomes, timed)))


def check_changed(
    steps: list[Step], recorded: dict[str, run.Shipped], without_gpu: bool, fresh: bool
) -> tuple[list[Outcome], list[Outcome]]:
    """Check the steps without a known verdict, those ``recorded`` with one at a few shapes; the outcomes of all. With
    a GPU, time what it has no current row of, too; those outcomes."""
    card, room = (None, 0) if without_gpu else run.inspect_device()
    checks = run.Outcomes([[card.name, card.driver] if card else "tracer", recorded], fresh)
    found = checks.known(steps, room)
    console.say_kept(len(found), "verdicts")
    rest, seed = [step for step in steps if step.name not in found], plan.new_seed()
    edits.keep(rest)
    rows = bench.Rows(fresh, quick=True) if card else None
    lacking = rows.lacking(arguments.pairs(steps, None)) if rows else []
    ceilings = rows is not None and (fresh or not current.ceilings(rows.record))

    def work(checking: run.Checking) -> Iterator[tuple[str, Any]]:
        """Each step is timed as soon as it is right, while others are compiled: with all processors busy FP32 steps
        took the time that they take alone, to 0.6%."""
        for step in steps:
            if step in rest:
                found[step.name] = list(checking.of([step]))
                yield "check", found[step.name]
            if all(outcome.fine for outcome in found[step.name]):
                if step in rest:
                    checks.keep(found[step.name])
                if rows:
                    checking.wait(step)
                    yield from rows.take([pair for pair in lacking if pair[0] is step])
        if rows:
            yield from rows.take(measuring.at_a_low_clock(rows.outcomes), ceilings=ceilings)

    if expected := range(len(rest) + len(lacking) + ceilings):
        with run.Checking(rest, without_gpu, seed=seed, brief=recorded, timed=lacking) as checking:
            for _ in console.progress("check and time" if card else "check", work(checking), expected, bench.line):
                pass
    outcomes = [outcome for step in steps for outcome in found[step.name]]
    if rows and rows.outcomes:
        rows.show()
    if rest:
        console.print_checks(outcomes, seed)
    if card and (wrong := {outcome.step.name for outcome in outcomes if not outcome.fine}):
        console.tell(f"[yellow]not timed, as not right: {', '.join(sorted(wrong))}[/]")
    console.say_shipped(recorded)
    return outcomes, measuring.latest(rows.outcomes) if rows else []
