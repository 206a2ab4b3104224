"""The command ``all``: check and time what has changed, and draw what follows from that."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from common.catalog import catalog, device, lessontext
from common.catalog.catalog import Step
from common.check import plan, run
from common.commands import arguments, bench, console, edits, pictures, verdicts
from common.records import current
from common.records.records import Record
from common.run.messages import Outcome
from common.timing import measuring


def do_all(options: argparse.Namespace) -> int:
    say, steps = console.say(), catalog.everything()
    without_gpu = arguments.without_gpu(options.sim)
    card = None if without_gpu else run.inspect_device()
    recorded = {} if options.fresh else run.shipped(steps)
    if without_gpu:  # that the compiler works here, one step shows; the others' compilations are of the record, too
        recorded.pop(steps[0].name, None)
    say.rule("check every step on the CPU" if without_gpu else "check and time every step")
    outcomes, timed = check_changed(steps, recorded, card, options.fresh)
    code = max(verdicts.exit_code(outcomes, asked=False), verdicts.exit_code(timed, asked=False))
    say.rule("charts and tables")
    if all(outcome.fine for outcome in outcomes if outcome.step.name == lessontext.read(catalog.LESSONS).photo):
        pictures.draw_photo(card[0] if card else None, options.fresh)
    if without_gpu:
        say.print("No GPU here: charts and tables in results/ and the pages name the cards that they are of.")
    code = max(code, pictures.redraw(options.fresh))
    verdicts.say_left_out(outcomes)
    return code


def check_changed(
    steps: list[Step], recorded: dict[str, run.Shipped], card: tuple[device.Gpu, int] | None, fresh: bool
) -> tuple[list[Outcome], list[Outcome]]:
    """Check the steps without a known verdict, those ``recorded`` with one at a few shapes; the outcomes of all. With
    a card, and the bytes that a problem may take there, time what it has no current row of, too; those outcomes."""
    checks = run.Outcomes([[card[0].name, card[0].driver] if card else "tracer", recorded], fresh)
    found = checks.known(steps, card[1] if card else 0)
    console.say_kept(len(found), "verdicts")
    rest, seed = [step for step in steps if step.name not in found], plan.new_seed()
    edits.keep(rest)
    rows = bench.Rows(Record.open(card[0], arguments.folder(False)), quick=True) if card else None
    pairs = arguments.pairs(steps, None) if card else []
    lacking = pairs
    if rows and card and not fresh:
        lacking = [pair for pair in pairs if not current.row(rows.record, *pair, card[1], in_turn=False)]
    console.say_kept(len(pairs) - len(lacking), "rows")
    ceilings = rows is not None and (fresh or not current.ceilings(rows.record))

    def work(checking: run.Checking) -> Iterator[tuple[str, Any]]:
        """Each step is timed as soon as it is right, while others are compiled: with all processors busy FP32 steps
        took the time that they take alone, to 0.6%."""
        for step in steps:
            if step in rest:
                found[step.name] = list(checking.of([step]))
                yield "check", found[step.name]
            right = all(outcome.fine for outcome in found[step.name])
            if step in rest and right:
                checks.keep(found[step.name])
            if rows and right:
                checking.wait(step)
                yield from rows.take([pair for pair in lacking if pair[0] is step])
        if rows:
            yield from rows.take(measuring.at_a_low_clock(rows.outcomes), ceilings=ceilings)

    if expected := range(len(rest) + len(lacking) + ceilings):
        with run.Checking(rest, not card, seed=seed, brief=recorded, timed=lacking) as checking:
            for _ in console.progress("check and time" if card else "check", work(checking), expected, bench.line):
                pass
    outcomes = [outcome for step in steps for outcome in found[step.name]]
    if rows and rows.outcomes:
        rows.show()
    if rest:
        verdicts.say_seed(seed, drawn=any(step.name not in recorded for step in rest))
        verdicts.print_checks(outcomes)
    if card and (wrong := {outcome.step.name for outcome in outcomes if not outcome.fine}):
        console.tell(f"[yellow]not timed, as not right: {', '.join(sorted(wrong))}[/]")
    verdicts.say_shipped(recorded)
    return outcomes, measuring.latest(rows.outcomes) if rows else []
