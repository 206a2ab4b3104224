"""What kernels do with memory, those of a step (``trace``) or of any program (``run``)."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import to_builtins
from rich.markup import escape

from common.catalog import problems, store
from common.catalog.catalog import Step
from common.commands import arguments, console
from common.commands.console import RIGHT, UNUSABLE, WRONG
from common.explain.faults import LOOK_AT, UNSOUND, cut
from common.records import records
from common.report import traces
from common.run import isolate
from common.trace import trace
from common.trace.messages import Script, ScriptResult, Traced

_SECONDS, _IN_ALL = 120.0, 3600.0  # for one group of blocks, or the host's code between launches; and for a program


def trace_steps(options: argparse.Namespace) -> int:
    if options.agree:
        return _agree(options)
    steps = arguments.one_or_two(options, "trace")
    shape = None if options.shape is None else arguments.shape_of(steps, options.shape, without_gpu=True)
    block = None if options.block is None else traces.block(options.block)
    kept, alone = traces.KEPT * bool(options.html), len(steps) == 1  # two are compared at one shape
    tasks = []
    for step in steps:
        usual = trace.shapes(step) if alone else problems.TRACED[step.ladder]
        tasks.append(trace.task(step, shape or usual[0], options.file, block=block, kept=kept))
    found = dict(zip(steps, console.progress("trace", trace.results(tasks), steps), strict=True))
    if options.html is not None:
        name = options.file and options.file.name
        _write_page([(name or step.name, traces.of(one, one.problem)) for step, one in found.items()], options)
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
    if options.json:
        console.print_json({step.name: record.data.agreement.get(step.name, {}) for step in steps})
    else:
        console.say().print(traces.agreement(record, *(step.name for step in steps)))
    return RIGHT


def _write_page(found: Sequence[tuple[str, traces.Kept]], options: argparse.Namespace) -> None:
    """Write traces, each with its step's or file's name, as the interactive page that ``--html`` names."""
    from common.report import book

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
        console.tell(f"[bold red]{escape(fault.sentence)}[/]\n    {escape(fault.code)}")
    if not found.faults:
        console.tell(f"[green]No fault[/] in what was traced: {traces.NO_FAULT}.")
        if usual:  # the shape is a multiple of the tiles
            ragged = problems.RAGGED[step.ladder][0]
            console.tell(f'Guards are tested at a shape that tiles do not divide: --shape "{ragged}"')


def run_script(options: argparse.Namespace) -> int:
    path: Path = options.script
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    task = Script(
        path=str(path.resolve()), ladder="", folder=os.getcwd(), words=options.words, stop=options.stop,
        kept=traces.KEPT * bool(options.html), aside=options.json, within=_IN_ALL,
    )  # fmt: skip
    ((_, found),) = isolate.run([task], True, _SECONDS)
    if options.html is not None:
        if kernels := [kernel for kernel in found.kernels if Path(kernel.file).is_file()]:
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
    notes, faults = list[str](), list[tuple[str, dict[str, Any]]]()
    for fault in found.others:  # the program's own
        said = f"{path.name}{f':{fault.line}' * bool(fault.line)}: {fault.what}"
        faults.append((said, {"file": None, "kernel": None, **to_builtins(fault)}))
    for kernel in found.kernels:
        where = f"{Path(kernel.file).name}, {kernel.name}, "
        notes += [f"{where}{note}." for note in kernel.notes]
        for fault in kernel.faults:
            told = {"file": kernel.file, "kernel": kernel.name, **to_builtins(fault), "name": UNSOUND[fault.kind]}
            told["look_at"] = fault.look_at or LOOK_AT[fault.kind]
            faults.append((where + fault.sentence, told))
    notes += [f"{note[0].upper()}{note[1:]}." for note in found.notes]
    lines = [f"[dim]{escape(traces.summary(kernel))}[/]" for kernel in found.kernels]
    lines += [escape(line) for line in (*traces.dearest(found.kernels), *notes)]
    for said, told in faults:
        lines.append(f"[bold red]{escape(said)}[/]")
        lines += [f"    {escape(told['code'])}"] * bool(told["code"])
        lines += [f"    [dim]look at: {escape(told['look_at'])}[/]"] * bool(told["look_at"])
    lines += [f"[yellow]Not known to the tracer:[/] {escape(text)}" for text in unknown]
    status, code = "unknown", UNUSABLE
    if faults:
        status, code = "faults", WRONG
    elif found.status == "right" and not found.unknown:
        status, code = "nothing found", RIGHT
        launched = sum(kernel.launches for kernel in found.kernels)
        launches = f"{launched:,} launches" if launched > 1 else "1 launch"
        text = f"in {launches}: {traces.NO_FAULT}" if launched else "as no kernel was launched"
        lines.append(f"[green]No fault[/] {text}.")
    result = {"status": status, "faults": [told for _, told in faults], "unknown": unknown, "notes": notes}
    return code, {**result, "kernels": found.kernels}, lines
