"""The commands ``inspect`` and ``trace``: what the compiler made of kernels, and what they do with memory."""

from __future__ import annotations

import argparse
from typing import Any

from msgspec import to_builtins
from rich.markup import escape

from common.catalog import catalog, limits
from common.check import compiling, run
from common.commands import arguments, console, verdicts
from common.commands.console import RIGHT, WRONG
from common.machine_code import successor
from common.records import records
from common.records.records import Record
from common.report import tables, traces
from common.trace import trace

_OWN = ("9.0", "10.0", "12.0")  # those with instructions of their own, which 9.0a names


def _refuse(options: argparse.Namespace, switch: str, *names: str) -> None:
    """Raise ValueError if an option is given that ``switch`` has no use for."""
    for name in names:
        if getattr(options, name) not in (None, False):
            raise ValueError(f"{switch}: goes with steps alone, not with --{name.replace('show', 'ptx or --sass')}")


def inspect(options: argparse.Namespace) -> int:
    if options.record:
        return _record(options)
    if options.compiler:
        _refuse(options, "--compiler mlir", "cc", "show", "json")
    steps = arguments.one_or_two(options, "inspect")
    pairs = arguments.pairs(steps, arguments.preset_of(steps, options.problem), named=True)
    architecture = options.cc or (successor.ARCHITECTURE if options.compiler else compiling.summary_architecture())
    if architecture not in limits.LIMITS and architecture.removesuffix("a") not in _OWN:
        known = ", ".join(limits.LIMITS)
        raise ValueError(f"--cc {architecture!r}: must be a compute capability such as 9.0: known are {known}")
    coming = compiling.summaries(pairs, architecture, options.file, options.show)
    outcomes = list(console.progress("compile", coming, pairs))
    shown = found = [(o.step.name, card) for o in outcomes for card in o.cards]
    if options.compiler:
        shown = [
            (f"{step.name} by {successor.PACKAGE}", card)
            for step, preset in pairs
            for card in run.ask(step.name, successor.compiled, step, preset, options.file, on_gpu=False)
        ]
        found = found + shown
    if options.json:
        results = [{"step": o.step.name, "problem": o.preset, **o.told()} for o in outcomes]
        console.print_json({"architecture": architecture, "results": results})
    elif options.show:
        for name, card in found:
            text = card["text"]
            print(f"// {tables.title(name, card)}, compute capability {architecture}")
            print(text if isinstance(text, str) else "\n".join(tables.whole(text)))
    else:
        if found:
            console.say().print(tables.side_by_side(found))
        for name, card in shown:
            console.say().print(tables.by_line(name, card))
    for outcome in outcomes:
        for reason in outcome.reasons:
            console.blame(f"{outcome.step.name}: {reason}")
    return verdicts.exit_code(outcomes, asked=True)


def _record(options: argparse.Namespace) -> int:
    """Compile steps for one architecture at every preset, and write their machine code's record if all compile; with
    ``--compiler`` what the successor makes of all."""
    _refuse(options, "--record", "cc", "file", "problem", "show", "json")
    steps = [catalog.find(name) for name in options.steps] or catalog.everything()
    if options.compiler:
        made = successor.save(successor.steps(), records.RESULTS)
        console.tell(f"{sum(not one.reason for one in made.steps.values())} of {len(made.steps)} steps compile")
        return RIGHT
    compiled = compiling.compile_steps(steps, (run.CODE_ARCHITECTURE,), True, every_preset=True)
    outcomes = list(console.progress("compile", compiled, steps, verdicts.line))
    verdicts.print_complaints(outcomes)
    code = verdicts.exit_code(outcomes, asked=True)
    if code == RIGHT:
        records.record_code(outcomes)
    else:
        console.warn("nothing is recorded: not everything compiles")
    return code


def trace_steps(options: argparse.Namespace) -> int:
    if options.agree:
        return _agree(options)
    steps = arguments.one_or_two(options, "trace")
    shape = None if options.shape is None else arguments.shape_of(steps, options.shape, without_gpu=True)
    choice: dict[str, Any] = {} if options.block is None else {"block": traces.block(options.block)}
    if options.html is not None:
        choice["kept"] = traces.KEPT
    alone = len(steps) == 1  # two are compared at one shape
    shapes = [shape or (trace.shapes(step) if alone else trace.SHAPES[step.ladder])[0] for step in steps]
    tasks = [trace.task(step, at, options.file, **choice) for step, at in zip(steps, shapes, strict=True)]
    found = list(console.progress("trace", trace.results(tasks), steps))
    taken = list(zip(steps, shapes, found, strict=True))
    if options.html is not None:
        shown = [(options.file.name if options.file else step.name, traces.of(one, at)) for step, at, one in taken]
        verdicts.write_page(shown, options)
    compared = "" if alone else traces.comparison({step.name: one for step, _, one in taken})
    if options.json:
        entries = [{"step": step.name, **to_builtins(one)} for step, _, one in taken]
        console.print_json(entries[0] if alone else {"steps": entries, "comparison": compared})
    else:
        for step, at, one in taken:
            verdicts.print_trace(step, at, one, shape is None)
        if compared:
            console.tell(escape(compared))
    return WRONG if any(kernel.faults for one in found for kernel in one.kernels) else RIGHT


def _agree(options: argparse.Namespace) -> int:
    """Show what the reference card's hardware counted beside what the tracer did, as recorded."""
    _refuse(options, "--agree", "block", "html", "shape", "file")
    steps = arguments.chosen(options)
    recorded = Record.load(records.RESULTS / f"{records.REFERENCE_GPU}.json").data.agreement
    found = {step.name: recorded.get(step.name, {}) for step in steps}
    if options.json:
        console.print_json(found)
    else:
        console.say().print(tables.agreement(found, steps))
    return RIGHT
