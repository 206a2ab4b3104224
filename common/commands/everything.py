"""The main job, ``all``: check, time, compile and draw what changed."""

from __future__ import annotations

import argparse

from common.catalog import catalog, lessontext
from common.catalog.catalog import Step
from common.check import plan
from common.commands import arguments, console, edits, pictures, verdicts
from common.commands.bench import Bench
from common.commands.console import RIGHT
from common.jobs import compiling, run, unchanged
from common.jobs.run import Outcome
from common.report import tables


def commands(known: arguments.Commands) -> None:
    sub = known.add("all", _all, "check everything, time it if there is a GPU, draw charts and tables: what changed")
    arguments.takes_sim(sub)
    sub.add_argument("--fresh", action="store_true", help="all of it anew, whether anything changed or not")


def _all(options: argparse.Namespace) -> int:
    say = console.say()
    steps = catalog.everything()
    simulator = arguments.simulator(options.sim, None)
    card = None if simulator else run.inspect_device()
    shipped = {} if options.fresh else unchanged.shipped(steps)
    say.rule("check every step" + (" on the CPU" if simulator else ""))
    engine = [card[0].name, card[0].driver] if card else "simulator"
    checks = unchanged.Outcomes("check", [engine, shipped], options.fresh)
    outcomes = _check(steps, checks, shipped, card[1] if card else 0, simulator)
    code = verdicts.exit_code(outcomes, asked=False)
    wrong = {o.step.name for o in outcomes if not o.fine}
    for name in sorted(wrong):
        say.print(f"[yellow]{name} is not timed: it is not right[/]")
    if card:
        say.rule("time every step")
        pairs = arguments.pairs(steps, None, every_preset=False)
        code = max(code, Bench(pairs, *card, options.fresh, quick=True).run(wrong))
    else:
        say.rule("compile every kernel")
        # that the compiler works here, one step shows; the others' compilations are of the record, too
        mine = [step for number, step in enumerate(steps) if number == 0 or step.name not in shipped]
        code = max(code, _compile(mine, options.fresh))
    say.rule("photograph")
    photographed = lessontext.photo(catalog.LESSONS)
    if photographed in wrong:
        say.print(f"[yellow]the photograph is left out: {photographed} is not right[/]")
    else:
        pictures.draw_photo(card[0] if card else None, options.fresh)
    say.rule("charts and tables")
    if simulator:
        said = "the charts and tables in results/ and the pages were measured on the cards that they name."
        say.print(f"No GPU here: {said}")
    code = max(code, pictures.redraw(options.fresh))
    verdicts.say_left_out(outcomes)
    return code


def _check(
    steps: list[Step],
    checks: unchanged.Outcomes,
    shipped: dict[str, unchanged.Verdict],
    room_bytes: int,
    simulator: bool,
) -> list[Outcome]:
    """Check the steps whose verdict is not known, those ``shipped`` with one at a few shapes; the outcomes of all."""
    found = checks.known(steps, room_bytes)
    rest = [step for step in steps if step.name not in found]
    console.say_kept(len(found), "verdict", "verdicts")
    seed = plan.new_seed()
    if rest:
        edits.keep(rest)
        checking = run.check_steps(rest, simulator, seed=seed, compiled=not simulator, brief=shipped)
        for outcome in verdicts.checked(rest, checking):
            found.setdefault(outcome.step.name, []).append(outcome)
        for step in rest:
            mine = found.get(step.name, [])
            if mine and all(outcome.fine for outcome in mine):
                checks.keep(mine)
    outcomes = [outcome for step in steps for outcome in found.get(step.name, [])]
    if rest:
        verdicts.say_seed(seed)
        verdicts.print_checks(outcomes)
    verdicts.say_shipped(shipped)
    return outcomes


def _compile(steps: list[Step], fresh: bool) -> int:
    """Compile the kernels of steps for the usual architectures, unless they are known to; returns the exit code."""
    from common.machine_code import codegen

    architectures = codegen.ARCHITECTURES
    results = unchanged.Outcomes("compile", architectures, fresh)
    found = results.known(steps)
    rest = [step for step in steps if step.name not in found]
    console.say_kept(len(found), "compilation", "compilations")
    if not rest:
        return RIGHT
    coming = compiling.compile_steps(rest, architectures, False)
    for outcome in console.progress("compile", coming, rest, verdicts.compiled_line):
        found[outcome.step.name] = [outcome]
        if outcome.status == "right":
            results.keep([outcome])
    outcomes = [outcome for step in steps for outcome in found[step.name]]
    verdicts.print_outcomes(tables.compiled(outcomes, architectures), outcomes)
    return verdicts.exit_code(outcomes, asked=True)
