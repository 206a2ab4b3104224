"""The command ``trace``."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import to_builtins
from rich.markup import escape

from common.catalog import device, problems, store
from common.catalog.catalog import Step
from common.commands import arguments, choosing, console
from common.commands.console import RIGHT, WRONG
from common.explain.faults import cut
from common.records import records
from common.records.entries import Agreement
from common.records.records import Record
from common.report import agreement, traces, tracetables
from common.trace import trace
from common.trace.messages import Traced


def commands(known: arguments.Commands) -> None:
    sub = known.add("trace", _trace, "run one block on the CPU and report every access to memory, line by line")
    arguments.takes_steps(sub, "one; or two, to compare; with --agree any, default: all steps")
    sub.add_argument("--shape", metavar='"M=2 N=3 ..."', help="trace at this shape (default: a small one)")
    sub.add_argument("--block", metavar="X,Y,Z", help="the block to trace (default: one in the middle)")
    sub.add_argument("--html", type=Path, metavar="OUT", help="write the trace as a page to look around in, one file")
    sub.add_argument(
        "--agree", action="store_true", help="compare with the hardware's counters; with a GPU, count anew"
    )


def _trace(options: argparse.Namespace) -> int:
    if options.agree:
        return _agree(options)
    if len(options.steps) not in (1, 2):
        raise ValueError(f"trace takes one STEP or two, and {len(options.steps)} are named")
    steps = choosing.one_or_two(options)
    shape = None if options.shape is None else choosing.shape_of(steps, options.shape, simulator=True)
    choice: dict[str, Any] = {} if options.block is None else {"block": tracetables.block(options.block)}
    if options.html is not None:
        _require_page(options.html)
        choice["kept"] = traces.KEPT
    alone = len(steps) == 1  # two are compared at one shape
    pairs = [(step, shape or (trace.shapes(step) if alone else trace.SHAPES[step.ladder])[0]) for step in steps]
    tasks = [trace.task(step, problem, options.file, **choice) for step, problem in pairs]
    found = list(console.quietly("trace", trace.results(tasks), steps))
    named = {step.name: one for step, one in zip(steps, found, strict=True)}
    if options.html is not None:
        from common.book import costs, explorer

        taken = [(step, traces.of(one, at)) for (step, at), one in zip(pairs, found, strict=True)]
        store.write(
            options.html, explorer.page([costs.Shown(step, one, options.file or step.path) for step, one in taken])
        )
        console.say(options).print(f"written: {escape(str(options.html))}", soft_wrap=True)
    compared = tracetables.comparison(named) if len(named) == 2 else None
    if options.json:
        entries = [{"step": name, **one} for name, one in named.items()]
        told = {"steps": entries, "comparison": compared} if compared else entries[0]
        print(json.dumps(to_builtins(told), indent=1))
    else:
        for (step, problem), one in zip(pairs, found, strict=True):
            _print_trace(step, problem, one, shape is None)
        if compared:
            console.say().print(escape(compared), soft_wrap=True)
    return WRONG if any(kernel["faults"] for one in found for kernel in one["kernels"]) else RIGHT


def _require_page(path: Path) -> None:
    """Raise ValueError unless the path can be a page's."""
    if path.suffix not in (".html", ".htm"):
        raise ValueError(f"--html {path}: must end in .html")
    if path.is_dir():
        raise ValueError(f"--html {path}: is a folder, must be a file")
    if not path.parent.is_dir():
        raise ValueError(f"--html {path}: there is no folder {path.parent}")


def _print_trace(step: Step, problem: problems.Problem, found: Traced, usual: bool) -> None:
    say = console.say()
    say.print(f"{step.name} at {problem}")
    for kernel in found["kernels"]:
        for table in tracetables.traced(kernel):
            say.print(table)
        for row in tracetables.pipeline(kernel, say.width):
            say.print(escape(row), soft_wrap=True, highlight=False)
        for line in kernel["printed"]:
            say.print(f"  prints {escape(cut(line, 200))}", soft_wrap=True, highlight=False)
        if more := kernel["prints"] - len(kernel["printed"]):
            say.print(f"  ... {more} more")
        for sentence in tracetables.sentences(kernel):
            say.print(escape(sentence), soft_wrap=True)
    faults = [fault for kernel in found["kernels"] for fault in kernel["faults"]]
    for fault in faults:
        text = f"[bold red]{escape(tracetables.fault_sentence(fault))}[/]\n    {escape(fault.code)}"
        say.print(text, soft_wrap=True)
    if not faults:
        what = "nothing out of bounds, no race, no uninitialised value stored"
        say.print(f"[green]No fault[/] in what was traced: {what}.", soft_wrap=True)
        if usual:  # the shape is a multiple of the tiles
            ragged = problems.RAGGED[step.ladder][0]
            say.print(f'Guards show at edges that no tile divides: --shape "{ragged}"', soft_wrap=True)


def _agree(options: argparse.Namespace) -> int:
    """Trace anew, and show that beside what the hardware counts: now, or where there is no GPU in the record."""
    for name in ("block", "html"):
        if getattr(options, name) is not None:
            raise ValueError(f"--{name}: goes with a trace of one block; --agree compares all blocks")
    steps = choosing.chosen(options)
    if options.file:
        steps = [replace(steps[0], path=options.file)]
    pairs = agreement.cases(steps)
    if options.shape is not None:
        shape = choosing.shape_of(steps, options.shape, simulator=True)
        pairs = [(step, shape) for step in steps]
    known = None
    if not device.gpu_count():
        record = Record.load(records.RESULTS / f"{records.REFERENCE_GPU}.json")
        known = record.data.agreement
        agreement.require_counted(pairs, known, record.gpu_name)
    found: dict[str, dict[str, Agreement]] = {}
    for step, problem, entry in console.quietly("trace", agreement.refresh(pairs, known), pairs):
        found.setdefault(step.name, {})[str(problem)] = entry
    if options.json:
        print(json.dumps(to_builtins(found), indent=1))
    else:
        say = console.say()
        say.print(agreement.agreed(found, steps, say.width))
    return RIGHT
