"""Commands that work through steps: ``list``, ``check``, ``time``, ``diff``, ``ship``; ``all`` does what changed."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from rich.markup import escape

from common.catalog import catalog, device, lessontext, shipped, sources
from common.catalog.catalog import Step
from common.check import compiling, plan, run
from common.commands import arguments, bench, console, edits, pictures, verdicts
from common.commands.console import RIGHT
from common.machine_code import codegen
from common.records import current, records
from common.records.records import Record
from common.report import tables
from common.run import messages
from common.run.messages import Outcome
from common.timing import measuring


def show_list(options: argparse.Namespace) -> int:
    steps = catalog.steps()
    if options.json:
        console.print_json([step.as_dict() for step in steps])
    else:
        console.say().print(tables.steps(steps))
    return RIGHT


def check(options: argparse.Namespace) -> int:
    if options.seed is not None and not 0 <= options.seed < 2**31:
        raise ValueError(f"--seed {options.seed}: must be an integer from 0 to {2**31 - 1}")
    seed = plan.new_seed() if options.seed is None else options.seed
    if options.record:
        return _record(options, seed)
    steps = arguments.chosen(options)
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
        engine = "tracer" if without_gpu else "gpu"
        console.print_json({"device": engine, "right": code == RIGHT, "seed": seed, "results": results})
    else:
        verdicts.say_seed(seed, drawn=shape is None)
        verdicts.print_checks(outcomes, options.file)
    verdicts.say_left_out(outcomes, options)
    return code


def _record(options: argparse.Namespace, seed: int) -> int:
    """Check steps at the whole plan and compile them for every architecture; ship the verdicts of those right."""
    if options.file or options.shape or options.full or options.json:
        raise ValueError("--record: takes steps and --seed alone")
    steps = [catalog.find(name) for name in options.steps] or catalog.everything()
    if small := device.small_card():
        raise ValueError(f"--record: verdicts are of {device.USUAL_CARD}, and this one has the limits of {small}")
    found = list(verdicts.checked(steps, run.check_steps(steps, True, seed=seed, compiled=False)))
    coming = compiling.compile_steps(steps, codegen.ARCHITECTURES, False)
    outcomes = [*found, *console.progress("compile", coming, steps, verdicts.line)]
    wrong = {outcome.step for outcome in outcomes if not outcome.fine}
    right = [one for one in found if one.step not in wrong]
    run.ship({step: [one for one in right if one.step == step] for step in {one.step for one in right}})
    verdicts.say_seed(seed)
    verdicts.print_checks(outcomes)
    return verdicts.exit_code(outcomes, asked=False)


def time(options: argparse.Namespace) -> int:
    device.require_gpu("timing")
    steps = arguments.chosen(options)
    pairs = arguments.pairs(steps, options.problem, named=bool(options.steps))
    gpu, ceilings = measuring.measure_device()
    edits.keep([] if options.file else steps)
    times = measuring.time_steps(pairs, options.file)
    outcomes = measuring.latest(console.progress("time", times, pairs, verdicts.line, options.json))
    if not options.json:
        verdicts.print_times(outcomes, ceilings, gpu.name)
        return verdicts.exit_code(outcomes, asked=True)
    results: list[dict[str, object]] = []
    for one in outcomes:
        results.append({"step": one.step.name, "problem": one.preset, **one.told()})
        right = one.status == "right"
        figures = records.derive(one.problem, one.time.median_ms, ceilings, one.step.precision) if right else None
        if figures:
            results[-1] |= {key: getattr(figures, key) for key in ("gflops", "gbs", "floor_ms", "percent_of_floor")}
    console.print_json({"gpu": gpu, "slug": gpu.slug, "ceilings": ceilings, "results": results})
    return verdicts.exit_code(outcomes, asked=True)


def diff(options: argparse.Namespace) -> int:
    first = catalog.find(options.old)
    if options.new is None and first.builds_on is None:
        raise ValueError(f"{first.name} starts its ladder: name a second step to compare it with")
    old, new = (first, catalog.find(options.new)) if options.new else (catalog.find(str(first.builds_on)), first)
    say = console.say()
    colours = {"+": "green", "-": "red", "@": "cyan"}
    lines = list(sources.difference(old, new))
    for line in lines:
        say.print(escape(line), style=colours.get(line[0]), soft_wrap=True)
    removed, added = (sum(line[0] == sign for line in lines) for sign in "-+")
    say.print(f"{removed} lines removed, {added} added; docstrings, indentation and imported code are left out")
    return RIGHT


def ship(_: argparse.Namespace) -> int:
    console.say().print(f"written: {shipped.note().relative_to(catalog.ROOT)}")
    return RIGHT


# --- all ---


def do_all(options: argparse.Namespace) -> int:
    say, steps = console.say(), catalog.everything()
    without_gpu = arguments.without_gpu(options.sim)
    card = None if without_gpu else run.inspect_device()
    recorded = {} if options.fresh else run.shipped(steps)
    if without_gpu:  # that the compiler works here, one step shows; the others' compilations are of the record, too
        recorded.pop(steps[0].name, None)
    say.rule("check every step on the CPU" if without_gpu else "check and time every step")
    outcomes, timed = _check_changed(steps, recorded, card, options.fresh)
    code = max(verdicts.exit_code(outcomes, asked=False), verdicts.exit_code(timed, asked=False))
    say.rule("charts and tables")
    if all(outcome.fine for outcome in outcomes if outcome.step.name == lessontext.read(catalog.LESSONS).photo):
        pictures.draw_photo(card[0] if card else None, options.fresh)
    if without_gpu:
        say.print("No GPU here: charts and tables in results/ and the pages name the cards that they are of.")
    code = max(code, pictures.redraw(options.fresh))
    verdicts.say_left_out(outcomes)
    return code


def _check_changed(
    steps: list[Step], recorded: dict[str, run.Shipped], card: tuple[device.Gpu, int] | None, fresh: bool
) -> tuple[list[Outcome], list[Outcome]]:
    """Check the steps without a known verdict, those ``recorded`` with one at a few shapes; the outcomes of all.

    With a card also time what it has no current row of, and return those outcomes: each step as soon as it is right,
    while others are compiled. With all processors busy FP32 steps took the time that they take alone, to 0.15%.
    """
    checks = run.Outcomes([[card[0].name, card[0].driver] if card else "tracer", recorded], fresh)
    found = checks.known(steps, card[1] if card else 0)
    console.say_kept(len(found), "verdicts")
    rest, seed = [step for step in steps if step.name not in found], plan.new_seed()
    edits.keep(rest)
    rows = bench.Rows(Record.open(card[0], arguments.folder(False)), quick=True) if card else None
    wanted: list[tuple[Step, str]] = []
    kernels: list[messages.Ask] = []
    if card and rows:
        pairs = arguments.pairs(steps, None)
        wanted = pairs if fresh else bench.lacking(pairs, rows.record, card[1], beside=False)
        console.say_kept(len(pairs) - len(wanted), "rows")
        kernels = bench.ceiling_kernels(card[0]) if fresh or not current.ceilings(rows.record) else []

    def work(checking: run.Checking) -> Iterator[tuple[str, Any]]:
        """What came of a step's check, and then of its times; at last the ceilings, and what ran at a low clock."""
        for step in steps:
            if step in rest:
                found[step.name] = list(checking.of([step]))
                yield "check", found[step.name]
            mine = found[step.name]
            if all(outcome.fine for outcome in mine):
                if step in rest:
                    checks.keep(mine)
                if rows:
                    yield from rows.take([pair for pair in wanted if pair[0] is step])
        if rows:
            checking.wait()
            yield from rows.take(measuring.at_a_low_clock(rows.outcomes), (), bool(kernels))

    expected: list[Any] = []
    for step in steps:
        expected += [step] * (step in rest) + [pair for pair in wanted if pair[0] is step]
    expected += ["ceilings"] * bool(kernels)
    if expected:
        with run.Checking(rest, card is None, seed=seed, brief=recorded, timed=wanted, others=kernels) as checking:
            for _ in console.progress("check and time" if card else "check", work(checking), expected, _line):
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


def _line(entry: tuple[str, Any]) -> str:
    return verdicts.checked_line(entry[1]) if entry[0] == "check" else bench.line(entry)
