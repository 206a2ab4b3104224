"""The commands ``inspect`` and ``trace``: what the compiler made of kernels, and what they do with memory."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import to_builtins
from rich.markup import escape

from common.catalog import device, problems, store
from common.check import compiling, run
from common.commands import arguments, console, verdicts
from common.commands.console import RIGHT, WRONG
from common.machine_code import successor
from common.records import records
from common.records.entries import Agreement
from common.records.records import Record
from common.report import agreement, tables, traces
from common.trace import trace


def commands(known: arguments.Commands) -> None:
    text = "show a kernel's machine code, registers and occupancy; needs no GPU"
    sub = known.add("inspect", _inspect, text)
    arguments.takes_steps(sub, "one, or two to compare; with --record any number")
    arguments.takes_preset(sub, "each ladder's")
    sub.add_argument("--cc", metavar="X.Y", help="compute capability (default: this GPU's, else 9.0)")
    show = sub.add_mutually_exclusive_group()
    show.add_argument("--ptx", action="store_const", const="ptx", dest="show", help="print the PTX")
    show.add_argument("--sass", action="store_const", const="sass", dest="show", help="print all machine code")
    text = "mlir: beside numba-cuda's code that of its successor, numba-cuda-mlir, where it is installed"
    sub.add_argument("--compiler", choices=("mlir",), help=text)
    text = "compile all steps, or those named, and write results/machine-code.json (for maintainers)"
    sub.add_argument("--record", action="store_true", help=text)

    sub = known.add("trace", _trace, "run one block on the CPU and report every access to memory, line by line")
    arguments.takes_steps(sub, "one, or two to compare; with --agree any number, default: all steps")
    sub.add_argument("--shape", metavar='"M=2 N=3 ..."', help="trace at this shape (default: a small one)")
    sub.add_argument("--block", metavar="X,Y,Z", help="the block to trace (default: one in the middle)")
    sub.add_argument("--html", type=Path, metavar="OUT", help="write the trace as an interactive page, in one file")
    sub.add_argument(
        "--agree", action="store_true", help="compare with the hardware's counters; with a GPU, count anew"
    )


def _inspect(options: argparse.Namespace) -> int:
    if options.compiler:
        return _compilers(options)
    if options.record:
        return _record(options)
    if len(options.steps) not in (1, 2):
        raise ValueError(f"inspect takes one STEP or two, and {len(options.steps)} are named")
    steps = arguments.one_or_two(options)
    pairs = arguments.pairs(steps, arguments.preset_of(steps, options.problem), every_preset=False, named=True)
    architecture = compiling.summary_architecture() if options.cc is None else arguments.architecture(options.cc)
    making = compiling.summaries(pairs, architecture, options.file, options.show)
    outcomes = list(console.quietly("compile", making, pairs))
    found = [(o.step.name, card) for o in outcomes for card in o.cards]
    say = console.say(options)
    if options.json:
        results = [{"step": o.step.name, "problem": o.preset, **o.told()} for o in outcomes]
        console.print_json({"architecture": architecture, "results": results})
    elif options.show:
        for name, card in found:
            print(f"// {tables.title(name, card)}, compute capability {architecture}")
            text = card["text"]
            print(text if isinstance(text, str) else "\n".join(tables.whole(text)))
    else:
        if len(outcomes) > 1 and found:
            say.print(tables.side_by_side(found))
        for name, card in found:
            for part in tables.full(name, card, listing=len(outcomes) == 1):
                say.print(part)
    for outcome in outcomes:
        for reason in outcome.reasons:
            console.complain(f"[bold red]error:[/] {outcome.step.name}: {escape(reason)}")
    return verdicts.exit_code(outcomes, asked=True)


def _compilers(options: argparse.Namespace) -> int:
    """Show a step's kernels by both compilers side by side, and the hot loops of the successor's."""
    if options.cc or options.show or options.json:
        raise ValueError("--compiler mlir: goes with STEP, --problem and --file, or with --record alone")
    if options.record:
        steps = successor.steps()
        made = successor.save(steps, records.RESULTS)
        print(f"{sum(not one.reason for one in made.steps.values())} of {len(steps)} steps compile")
        return RIGHT
    (step,) = arguments.one_or_two(options)
    preset = arguments.preset_of([step], options.problem)
    preset = preset or problems.DEFAULT_PRESET[step.ladder]
    new = successor.compiled(step, preset, options.file)
    (outcome,) = compiling.summaries([(step, preset)], successor.ARCHITECTURE, options.file)
    say = console.say(options)
    both = [("numba-cuda", card) for card in outcome.cards] + [(successor.PACKAGE, card) for card in new]
    say.print(tables.side_by_side(both))
    for card in new:
        for part in tables.full(step.name, card):
            say.print(part)
    return RIGHT


def _record(options: argparse.Namespace) -> int:
    """Compile steps for one architecture at every preset, and write their machine code's record if all compile."""
    if options.cc or options.file or options.problem or options.show or options.json:
        raise ValueError("--record: takes steps alone")
    steps = arguments.chosen(options)
    arguments.require_shipped(steps)
    compiled = compiling.compile_steps(steps, (run.CODE_ARCHITECTURE,), True, every_preset=True)
    outcomes = list(console.progress("compile", compiled, steps, verdicts.compiled_line))
    verdicts.print_outcomes(tables.compiled(outcomes, (run.CODE_ARCHITECTURE,)), outcomes)
    code = verdicts.exit_code(outcomes, asked=True)
    if code == RIGHT:
        records.record_code(outcomes)
    else:
        console.complain("[yellow]nothing is recorded: not everything compiles[/]")
    return code


def _trace(options: argparse.Namespace) -> int:
    if options.agree:
        return _agree(options)
    if len(options.steps) not in (1, 2):
        raise ValueError(f"trace takes one STEP or two, and {len(options.steps)} are named")
    steps = arguments.one_or_two(options)
    shape = None if options.shape is None else arguments.shape_of(steps, options.shape, without_gpu=True)
    choice: dict[str, Any] = {} if options.block is None else {"block": traces.block(options.block)}
    if options.html is not None:
        arguments.require_page(options.html)
        choice["kept"] = traces.KEPT
    alone = len(steps) == 1  # two are compared at one shape
    pairs = [(step, shape or (trace.shapes(step) if alone else trace.SHAPES[step.ladder])[0]) for step in steps]
    tasks = [trace.task(step, problem, options.file, **choice) for step, problem in pairs]
    found = list(console.quietly("trace", trace.results(tasks), steps))
    named = {step.name: one for step, one in zip(steps, found, strict=True)}
    if options.html is not None:
        from common.book import costs, explorer

        taken = [(step, traces.of(one, at)) for (step, at), one in zip(pairs, found, strict=True)]
        shown = [costs.Shown(step, one, options.file or step.path) for step, one in taken]
        store.write(options.html, explorer.page(shown))
        console.say(options).print(f"written: {escape(str(options.html))}", soft_wrap=True)
    compared = traces.comparison(named) if len(named) == 2 else None
    if options.json:
        entries = [{"step": name, **to_builtins(one)} for name, one in named.items()]
        told = {"steps": entries, "comparison": compared} if compared else entries[0]
        console.print_json(told)
    else:
        for (step, problem), one in zip(pairs, found, strict=True):
            verdicts.print_trace(step, problem, one, shape is None)
        if compared:
            console.say().print(escape(compared), soft_wrap=True)
    return WRONG if any(kernel.faults for one in found for kernel in one.kernels) else RIGHT


def _agree(options: argparse.Namespace) -> int:
    """Show what the hardware counts beside what the tracer does: both now, or where there is no GPU as recorded."""
    for name in ("block", "html"):
        if getattr(options, name) is not None:
            raise ValueError(f"--{name}: goes with a trace of one block; --agree compares all blocks")
    steps = arguments.chosen(options)
    found: dict[str, dict[str, Agreement]] = {}
    if device.gpu_count():
        if options.file:
            steps = [replace(steps[0], path=options.file)]
        pairs = agreement.cases(steps)
        if options.shape is not None:
            shape = arguments.shape_of(steps, options.shape, without_gpu=True)
            pairs = [(step, shape) for step in steps]
        for step, problem, entry in console.quietly("trace", agreement.refresh(pairs), pairs):
            found.setdefault(step.name, {})[str(problem)] = entry
    else:
        record = Record.load(records.RESULTS / f"{records.REFERENCE_GPU}.json")
        if options.file or options.shape is not None:
            raise ValueError(f"--agree: {record.gpu_name} has counted shipped steps alone, and there is no GPU here")
        found = {step.name: record.data.agreement.get(step.name, {}) for step in steps}
    if options.json:
        console.print_json(found)
    else:
        console.say().print(agreement.table(found, steps, ratios_alone=True))
    return RIGHT
