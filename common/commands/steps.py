"""Commands that work through steps: ``list``, ``check``, ``diff``, ``all``, which does what changed, and ``ship``."""

from __future__ import annotations

import argparse

from rich.markup import escape

from common.catalog import catalog, device, lessontext, shipped, sources
from common.catalog.catalog import Step
from common.check import compiling, plan, run
from common.commands import arguments, console, edits, pictures, verdicts
from common.commands.bench import Bench
from common.commands.console import RIGHT
from common.machine_code import codegen
from common.report import tables
from common.run.messages import Outcome


def commands(known: arguments.Commands) -> None:
    arguments.takes_json(known.add("list", _list, "list all steps"))

    sub = known.add("check", _check, "check that steps compute the right values, without races or unset reads")
    arguments.takes_steps(sub)
    arguments.takes_sim(sub)
    sub.add_argument("--shape", metavar='"N=2 C=3 ..."', help="check at this shape only")
    sub.add_argument("--seed", type=int, metavar="N", help="seed of the shapes that are drawn at random")
    sub.add_argument("--full", action="store_true", help="check at hundreds of shapes, with every pair of conditions")
    text = "write the shipped verdicts, results/verdicts.json, as if there were no GPU (for maintainers)"
    sub.add_argument("--record", action="store_true", help=text)

    sub = known.add("all", _all, "check, time (with a GPU) and draw charts and tables of all that has changed")
    arguments.takes_sim(sub)
    sub.add_argument("--fresh", action="store_true", help="do all of it anew, changed or not")

    sub = known.add("diff", _diff, "show what differs between two steps, docstrings left out")
    sub.add_argument("old", metavar="FROM", help="step or experiment; without TO, compared with what it grew from")
    sub.add_argument("new", metavar="TO", nargs="?", help="step or experiment")

    what = "declare helpers and exercises, as they are now, the shipped ones (for maintainers)"
    known.add("ship", _ship, what)


def _list(options: argparse.Namespace) -> int:
    steps = catalog.steps()
    if options.json:
        console.print_json([step.as_dict() for step in steps])
    else:
        console.say().print(tables.steps(steps))
    return RIGHT


def _check(options: argparse.Namespace) -> int:
    steps = arguments.chosen(options)
    if options.seed is not None and not 0 <= options.seed < 2**31:
        raise ValueError(f"--seed {options.seed}: must be an integer from 0 to {2**31 - 1}")
    seed = plan.new_seed() if options.seed is None else options.seed
    if options.record:
        return _record(options, steps, seed)
    if options.full and options.shape is not None:
        raise ValueError("--full has shapes of its own: it cannot be given with --shape")
    shape = None
    if options.shape is not None:
        shape = arguments.shape_of(steps, options.shape, options.sim or not device.gpu_count())
    without_gpu = arguments.without_gpu(options.sim, options)
    edits.keep([] if options.file else steps)
    checking = run.check_steps(steps, without_gpu, shape, options.file, seed, full=options.full)
    outcomes = list(verdicts.checked(steps, checking, options.json))
    code = verdicts.exit_code(outcomes, shape is not None)
    if options.json:
        results = [{"step": o.step.name, **o.told(), "shape": o.problem.shape()} for o in outcomes]
        device_name = "tracer" if without_gpu else "gpu"
        found = {"device": device_name, "right": code == RIGHT, "seed": seed, "results": results}
        console.print_json(found)
    else:
        verdicts.say_seed(seed, drawn=shape is None)
        verdicts.print_checks(outcomes, options.file)
    verdicts.say_left_out(outcomes, options.json)
    return code


def _record(options: argparse.Namespace, steps: list[Step], seed: int) -> int:
    """Check steps at the whole plan and compile them for every architecture; ship the verdicts of those right."""
    if options.file or options.shape or options.full or options.json:
        raise ValueError("--record: takes steps and --seed alone")
    arguments.require_shipped(steps)
    if small := device.small_card():
        raise ValueError(
            f"--record: the shipped verdicts are those of a card of {device.USUAL_CARD}, "
            f"and this one has the limits of {small}"
        )
    found: dict[Step, list[Outcome]] = {step: [] for step in steps}
    for outcome in verdicts.checked(steps, run.check_steps(steps, True, seed=seed, compiled=False)):
        found[outcome.step].append(outcome)
    coming = compiling.compile_steps(steps, codegen.ARCHITECTURES, False)
    compiled = list(console.progress("compile", coming, steps, verdicts.compiled_line))
    outcomes = [*(one for mine in found.values() for one in mine), *compiled]
    wrong = {outcome.step for outcome in outcomes if not outcome.fine}
    run.ship({step: mine for step, mine in found.items() if step not in wrong and mine})
    verdicts.say_seed(seed)
    verdicts.print_checks(outcomes)
    return verdicts.exit_code(outcomes, asked=False)


def _diff(options: argparse.Namespace) -> int:
    first = catalog.find(options.old)
    if options.new is None and first.builds_on is None:
        raise ValueError(f"{first.name} starts its ladder: name a second step to compare it with")
    old, new = (first, catalog.find(options.new)) if options.new else (catalog.find(str(first.builds_on)), first)
    say = console.say()
    colours = {"+": "green", "-": "red", "@": "cyan"}
    lines = list(sources.difference(old, new))
    for line in lines:
        colour = colours.get(line[0])
        say.print(f"[{colour}]{escape(line)}[/]" if colour else escape(line), soft_wrap=True)
    counts = [sum(line[0] == sign for line in lines) for sign in "-+"]
    left_out = "docstrings, indentation and imported code are left out"
    say.print(f"{counts[0]} lines removed, {counts[1]} added; {left_out}")
    return RIGHT


def _ship(_: argparse.Namespace) -> int:
    console.say().print(f"written: {shipped.note().relative_to(catalog.ROOT)}")
    return RIGHT


# --- all ---


def _all(options: argparse.Namespace) -> int:
    say = console.say()
    steps = catalog.everything()
    without_gpu = arguments.without_gpu(options.sim, None)
    card = None if without_gpu else run.inspect_device()
    recorded = {} if options.fresh else run.shipped(steps)
    if without_gpu:  # that the compiler works here, one step shows; the others' compilations are of the record, too
        recorded.pop(steps[0].name, None)
    say.rule("check every step" + (" on the CPU" if without_gpu else ""))
    engine = [card[0].name, card[0].driver] if card else "tracer"
    checks = run.Outcomes([engine, recorded], options.fresh)
    outcomes = _check_changed(steps, checks, recorded, card[1] if card else 0, without_gpu)
    code = verdicts.exit_code(outcomes, asked=False)
    wrong = {o.step.name for o in outcomes if not o.fine}
    for name in sorted(wrong):
        say.print(f"[yellow]{name} is not timed: it is not right[/]")
    if card:
        say.rule("time every step")
        pairs = arguments.pairs(steps, None, every_preset=False)
        code = max(code, Bench(pairs, *card, options.fresh, quick=True).run(wrong))
    say.rule("photograph")
    photographed = lessontext.photo(catalog.LESSONS)
    if photographed in wrong:
        say.print(f"[yellow]the photograph is left out: {photographed} is not right[/]")
    else:
        pictures.draw_photo(card[0] if card else None, options.fresh)
    say.rule("charts and tables")
    if without_gpu:
        said = "the charts and tables in results/ and the pages were measured on the cards that they name."
        say.print(f"No GPU here: {said}")
    code = max(code, pictures.redraw(options.fresh))
    verdicts.say_left_out(outcomes)
    return code


def _check_changed(
    steps: list[Step],
    checks: run.Outcomes,
    recorded: dict[str, run.Shipped],
    room_bytes: int,
    without_gpu: bool,
) -> list[Outcome]:
    """Check the steps without a known verdict, those ``recorded`` with one at a few shapes; the outcomes of all."""
    found = checks.known(steps, room_bytes)
    rest = [step for step in steps if step.name not in found]
    console.say_kept(len(found), "verdict", "verdicts")
    seed = plan.new_seed()
    if rest:
        edits.keep(rest)
        timed = [] if without_gpu else arguments.pairs(rest, None, every_preset=False)
        checking = run.check_steps(rest, without_gpu, seed=seed, brief=recorded, timed=timed)
        for outcome in verdicts.checked(rest, checking):
            found.setdefault(outcome.step.name, []).append(outcome)
        for step in rest:
            mine = found.get(step.name, [])
            if mine and all(outcome.fine for outcome in mine):
                checks.keep(mine)
    outcomes = [outcome for step in steps for outcome in found.get(step.name, [])]
    if rest:
        verdicts.say_seed(seed, drawn=any(step.name not in recorded for step in rest))
        verdicts.print_checks(outcomes)
    verdicts.say_shipped(recorded)
    return outcomes
