"""Commands that work through steps: ``list``, ``check``, ``time``, ``diff``, ``ship``, ``inspect``."""

import argparse
from typing import Any

from rich.markup import escape

from common.catalog import catalog, device, limits, sources, store
from common.check import plan, run
from common.commands import arguments, console, edits
from common.commands.console import RIGHT
from common.machine_code import codegen, successor
from common.records import records
from common.report import tables, traces
from common.run import isolate
from common.timing import measuring


def show_list(options: argparse.Namespace) -> None:
    steps = catalog.steps()
    if options.json:
        console.print_json([step.as_dict() for step in steps])
    else:
        console.say().print(tables.steps(steps))


def check(options: argparse.Namespace) -> int:
    if options.seed is not None and not 0 <= options.seed < 2**31:
        raise ValueError(f"--seed {options.seed}: must be an integer from 0 to {2**31 - 1}")
    seed = plan.new_seed() if options.seed is None else options.seed
    if options.record:
        return _record_verdicts(options, seed)
    isolate.warm()
    steps = arguments.chosen(options)
    if options.full and options.shape is not None:
        raise ValueError("--full has shapes of its own: it cannot be given with --shape")
    shape = None
    if options.shape is not None:
        shape = arguments.shape_of(steps, options.shape, options.sim or not device.gpu_count())
    without_gpu = arguments.without_gpu(options.sim, options)
    edits.keep([] if options.file else steps)
    checking = run.check_steps(steps, without_gpu, shape, options.file, seed, full=options.full)
    outcomes = list(console.checked(steps, checking, options.json))
    code = console.exit_code(outcomes, shape is not None)
    if options.json:
        results = [{"step": o.step.name, **o.told(), "shape": o.problem.shape()} for o in outcomes]
        engine = "tracer" if without_gpu else "gpu"
        console.print_json({"device": engine, "right": code == RIGHT, "seed": seed, "results": results})
    else:
        console.print_checks(outcomes, seed, options.file)
    console.say_left_out(outcomes, options)
    return code


def _record_verdicts(options: argparse.Namespace, seed: int) -> int:
    """Check steps at the whole plan and compile them for every architecture; ship the verdicts of those right."""
    arguments.refuse(options, "--record", "file", "shape", "full", "json")
    steps = [catalog.find(name) for name in options.steps] or catalog.everything()
    if small := device.small_card():
        raise ValueError(f"--record: verdicts are of {device.USUAL_CARD}, and this one has the limits of {small}")
    found = list(console.checked(steps, run.check_steps(steps, True, seed=seed, compiled=False)))
    coming = run.compile_steps(steps, codegen.ARCHITECTURES, False)
    outcomes = [*found, *console.progress("compile", coming, steps, console.line)]
    wrong = {outcome.step for outcome in outcomes if not outcome.fine}
    run.ship({step: [one for one in found if one.step == step] for step in steps if step not in wrong})
    console.print_checks(outcomes, seed)
    return console.exit_code(outcomes, asked=False)


def time(options: argparse.Namespace) -> int:
    device.require_gpu("timing")
    steps = arguments.chosen(options)
    pairs = arguments.pairs(steps, options.problem, named=bool(options.steps))
    gpu, ceilings = measuring.measure_device()
    edits.keep([] if options.file else steps)
    times = measuring.measure(pairs, options.file)
    outcomes = measuring.latest(console.progress("time", times, pairs, console.line, options.json))
    if options.json:
        results: list[dict[str, object]] = []
        for one in outcomes:
            results.append({"step": one.step.name, "problem": one.preset, **one.told()})
            if one.status != "right":
                continue
            if figures := records.derive(one.problem, one.time.median_ms, ceilings, one.step.precision):
                results[-1] |= {
                    key: getattr(figures, key) for key in ("gflops", "gbs", "floor_ms", "percent_of_floor")
                }
        console.print_json({"gpu": gpu, "slug": gpu.slug, "ceilings": ceilings, "results": results})
    else:
        console.print_times(outcomes, ceilings, gpu.name)
    return console.exit_code(outcomes, asked=True)


def diff(options: argparse.Namespace) -> None:
    first = catalog.find(options.old)
    if options.new is None and first.builds_on is None:
        raise ValueError(f"{first.name} starts its ladder: name a second step to compare it with")
    old, new = (first, catalog.find(options.new)) if options.new else (catalog.find(str(first.builds_on)), first)
    colours, lines = {"+": "green", "-": "red", "@": "cyan"}, list(sources.difference(old, new))
    for line in lines:
        console.say().print(escape(line), style=colours.get(line[0]), soft_wrap=True)
    removed, added = (sum(line[0] == sign for line in lines) for sign in "-+")
    console.tell(f"{removed} lines removed, {added} added; docstrings, indentation and imported code are left out")
    if sources.mostly_new(lines, new):
        console.tell(f"most of {new.name} is new: read {store.shown(new.path)} from top to bottom")


def ship(_: argparse.Namespace) -> None:
    console.tell(f"written: {store.shown(sources.ship())}")


def inspect(options: argparse.Namespace) -> int:
    if options.record:
        return _record_code(options)
    if options.compiler:
        arguments.refuse(options, "--compiler mlir", "cc", "show", "json")
    steps = arguments.one_or_two(options, "inspect")
    pairs = arguments.pairs(steps, arguments.preset_of(steps, options.problem), named=True)
    own = device.compute_capability()
    usual = own if own in limits.LIMITS else run.CODE_ARCHITECTURE
    architecture = options.cc or (successor.ARCHITECTURE if options.compiler else usual)
    known = (*limits.LIMITS, "9.0a", "10.0a", "12.0a")  # these with instructions of their own
    if architecture not in known:
        text = f"must be a compute capability such as 9.0: known are {', '.join(known)}"
        raise ValueError(f"--cc {architecture!r}: {text}")
    coming = run.summaries(pairs, architecture, options.file, options.show)
    outcomes = list(console.progress("compile", coming, pairs))
    found, others = [(o.step.name, card) for o in outcomes for card in o.cards], list[Any]()
    for step, preset in pairs if options.compiler else ():
        cards = run.ask(step.name, successor.compiled, step, preset, options.file, on_gpu=False)
        others += [(f"{step.name} by {successor.PACKAGE}", card) for card in cards]
    if options.json:
        results = [{"step": o.step.name, "problem": o.preset, **o.told()} for o in outcomes]
        for one, o in zip(results, outcomes, strict=True):
            one |= {"cards": [card.told() for card in o.cards]} if o.cards else {}
        console.print_json({"architecture": architecture, "results": results})
    elif options.show:
        for name, card in found:
            print(f"// {traces.title(name, card)}, compute capability {architecture}")
            print(card.text if isinstance(card.text, str) else "\n".join(traces.whole(card.text)))
    elif both := found + others:
        console.say().print(traces.side_by_side(both), *(traces.by_line(*one) for one in others or found))
    for outcome in outcomes:
        for reason in outcome.reasons:
            console.blame(f"{outcome.step.name}: {reason}")
    return console.exit_code(outcomes, asked=True)


def _record_code(options: argparse.Namespace) -> int:
    """Compile steps for one architecture at every preset, and write their machine code's record if all compile; with
    ``--compiler`` what the successor makes of all."""
    arguments.refuse(options, "--record", "cc", "file", "problem", "show", "json")
    steps = [catalog.find(name) for name in options.steps] or catalog.everything()
    if options.compiler:
        made = successor.save(successor.steps(), records.RESULTS)
        console.tell(f"{sum(not one.reason for one in made.steps.values())} of {len(made.steps)} steps compile")
        return RIGHT
    compiled = run.compile_steps(steps, (run.CODE_ARCHITECTURE,), True, every_preset=True)
    outcomes = list(console.progress("compile", compiled, steps, console.line))
    console.print_complaints(outcomes)
    if code := console.exit_code(outcomes, asked=True):
        console.warn("nothing is recorded: not everything compiles")
    else:
        records.record_code(outcomes)
    return code
