"""The commands ``trace`` and ``run``: what the kernels of a step, or of any program, do with memory."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import to_builtins
from rich.markup import escape

from common.catalog import problems, store
from common.catalog.catalog import Step
from common.commands import arguments, console
from common.commands.console import RIGHT, UNUSABLE, WRONG
from common.explain.faults import UNSOUND, cut
from common.records import records
from common.report import traces
from common.run import isolate
from common.trace import trace
from common.trace.messages import Script, ScriptResult, Traced

_SECONDS, _IN_ALL = 120.0, 3600.0  # for one group of blocks, or the host's code between launches; and for a program
_POLL_SECONDS = 0.05


def trace_steps(options: argparse.Namespace) -> int:
    if options.agree:
        return _agree(options)
    steps = arguments.one_or_two(options, "trace")
    shape = None if options.shape is None else arguments.shape_of(steps, options.shape, without_gpu=True)
    choice: dict[str, Any] = {"kept": traces.KEPT} if options.html is not None else {}
    if options.block is not None:
        choice["block"] = traces.block(options.block)
    alone = len(steps) == 1  # two are compared at one shape
    tasks = []
    for step in steps:
        usual = trace.shapes(step) if alone else trace.SHAPES[step.ladder]
        tasks.append(trace.task(step, shape or usual[0], options.file, **choice))
    found = dict(zip(steps, console.progress("trace", trace.results(tasks), steps), strict=True))
    if options.html is not None:
        shown = [
            (options.file.name if options.file else step.name, traces.of(one, one.problem))
            for step, one in found.items()
        ]
        _write_page(shown, options)
    compared = "" if alone else traces.comparison({step.name: one for step, one in found.items()})
    if options.json:
        entries = [{"step": step.name, **to_builtins(one)} for step, one in found.items()]
        console.print_json(entries[0] if alone else {"steps": entries, "comparison": compared})
    else:
        for step, one in found.items():
            _print_trace(step, one, shape is None)
        console.tell(*[escape(compared)] * bool(compared))
    return WRONG if any(one.faults for one in found.values()) else RIGHT


def _agree(options: argparse.Namespace) -> int:
    """Show what the reference card's hardware counted beside what the tracer did, as recorded."""
    arguments.refuse(options, "--agree", "block", "html", "shape", "file")
    steps, record = arguments.chosen(options), records.Record.load(records.RESULTS / f"{records.REFERENCE_GPU}.json")
    found = {step.name: record.data.agreement.get(step.name, {}) for step in steps}
    if options.json:
        console.print_json(found)
    else:
        console.say().print(traces.agreement(found, steps))
    return RIGHT


def _write_page(found: Sequence[tuple[str, traces.Kept]], options: argparse.Namespace) -> None:
    """Write traces, each with its step's or file's name, as the interactive page that ``--html`` names."""
    from common.book import book

    store.write(options.html, book.page(found))
    console.tell(f"written: {escape(str(options.html))}", options=options)


def _print_trace(step: Step, found: Traced, usual: bool) -> None:
    say = console.say()
    say.print(f"{step.name} at {found.problem}")
    for kernel in found.kernels:
        for table in traces.traced(kernel):
            say.print(table)
        lines = [*traces.pipeline(kernel, say.width), *(f"  prints {cut(line, 200)}" for line in kernel.printed)]
        if more := kernel.prints - len(kernel.printed):
            lines.append(f"  ... {more} more")
        console.tell(*map(escape, (*lines, *traces.sentences(kernel))))
    for fault in found.faults:
        console.tell(f"[bold red]{escape(traces.fault_sentence(fault))}[/]\n    {escape(fault.code)}")
    if not found.faults:
        console.tell(f"[green]No fault[/] in what was traced: {traces.NO_FAULT}.")
        if usual:  # the shape is a multiple of the tiles
            ragged = problems.RAGGED[step.ladder][0]
            console.tell(f'Guards are tested at a shape that tiles do not divide: --shape "{ragged}"')


def run_script(options: argparse.Namespace) -> int:
    path: Path = options.script
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    with _passed_on(options.json) as (output, errors):
        task = Script(
            path=str(path.resolve()), ladder="", folder=os.getcwd(), words=options.words, stop=options.stop,
            kept=traces.KEPT if options.html is not None else 0, output=output, errors=errors, within=_IN_ALL,
        )  # fmt: skip
        ((_, found),) = isolate.run([task], True, _SECONDS)
    if options.html is not None:
        kernels = [kernel for kernel in found.kernels if Path(kernel.file).is_file()]
        if kernels:
            _write_page([(path.name, traces.of(Traced("", {}, kernels), path.name))], options)
        else:
            console.warn(f"{options.html}: not written, as no kernel of a file ran")
    code, told, lines = _report(path, found)
    if options.json:
        console.print_json(told)
    else:
        console.tell(*lines)
    return code


def _report(path: Path, found: ScriptResult) -> tuple[int, dict[str, object], list[str]]:
    """The exit code, the result as JSON has it, and in lines for people."""
    unknown = [*found.unknown, *([found.message] if found.message else [])]  # or why the program has no end
    notes, faults, said = list[str](), list[dict[str, Any]](), list[str]()
    for fault in found.others:  # the program's own
        faults.append({"file": None, "kernel": None, **to_builtins(fault)})
        said.append(f"{path.name}{f':{fault.line}' * bool(fault.line)}: {fault.what}")
    for kernel in found.kernels:
        where = f"{Path(kernel.file).name}, {kernel.name}, "
        notes += [f"{where}{note}." for note in kernel.notes]
        for fault in kernel.faults:
            named = {**to_builtins(fault), "name": UNSOUND[fault.kind]}
            faults.append({"file": kernel.file, "kernel": kernel.name, **named})
            said.append(f"{where}{traces.fault_sentence(fault)}")
    notes += [f"{note[0].upper()}{note[1:]}." for note in found.notes]
    lines = [f"[dim]{escape(traces.summary(kernel))}[/]" for kernel in found.kernels]
    lines += [escape(line) for line in (*traces.dearest(found.kernels), *notes)]
    for text, each in zip(said, faults, strict=True):
        lines.append(f"[bold red]{escape(text)}[/]")
        lines += [f"    {escape(each['code'])}"] if each["code"] else []
        lines += [f"    [dim]look at {escape(each['look_at'])}[/]"] if each["look_at"] else []
    lines += [f"[yellow]Not known to the tracer:[/] {escape(text)}" for text in unknown]
    status, code = "unknown", UNUSABLE
    if faults:
        status, code = "faults", WRONG
    elif found.status == "right" and not found.unknown:
        status, code = "nothing found", RIGHT
        launched = sum(kernel.launches for kernel in found.kernels)
        text = f"in {launched:,} launches: {traces.NO_FAULT}" if launched else "as no kernel was launched"
        lines.append(f"[green]No fault[/] {text}.")
    told: dict[str, object] = {"status": status, "faults": faults, "unknown": unknown, "notes": notes}
    return code, {**told, "kernels": found.kernels}, lines


@contextmanager
def _passed_on(aside: bool) -> Iterator[tuple[str, str]]:
    """Two files that a program prints to; what comes is passed on at once, to standard error alone beside JSON."""
    done = threading.Event()

    def pass_on() -> None:
        over = False
        while not over:
            over = done.wait(_POLL_SECONDS)
            for file, target in ((output, sys.stderr if aside else sys.stdout), (errors, sys.stderr)):
                try:
                    target.flush()
                    target.buffer.write(file.read())
                    target.buffer.flush()
                except OSError:
                    console.discard(target)

    with (
        tempfile.TemporaryDirectory() as folder,
        Path(folder, "output").open("w+b") as output,
        Path(folder, "errors").open("w+b") as errors,
    ):
        thread = threading.Thread(target=pass_on, daemon=True)
        thread.start()
        try:
            yield output.name, errors.name
        finally:
            done.set()
            thread.join()
