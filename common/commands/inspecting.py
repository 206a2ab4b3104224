"""The commands ``inspect``, ``trace`` and ``run``: what the compiler made of kernels, and what they do with memory,
a step's or any Numba CUDA program's.
"""

from __future__ import annotations

import argparse
import codecs
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from msgspec import to_builtins
from rich.markup import escape

from common.catalog import catalog, device, problems, store
from common.catalog.catalog import Step
from common.check import compiling, run
from common.commands import arguments, console
from common.commands.console import RIGHT, UNUSABLE, WRONG
from common.explain.faults import UNSOUND, Fault
from common.machine_code import successor
from common.records import records
from common.records.entries import Agreement
from common.records.records import Record
from common.report import agreement, tables, traces
from common.run import isolate
from common.trace import trace
from common.trace.messages import Script, ScriptResult, Traced, TracedKernel

_SECONDS, _IN_ALL = 120.0, 3600.0  # for one group of blocks, or the host's code between launches; and for a program
_POLL_SECONDS = 0.05


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

    text = "run any Numba CUDA program in the tracer, without a GPU; report its faults and costs"
    sub = known.add("run", _run, text)
    sub.add_argument("script", type=Path, metavar="SCRIPT.py", help="the program")
    sub.add_argument("--stop", action="store_true", help="stop after the first launch that has a fault")
    sub.add_argument("--html", type=Path, metavar="OUT", help="write the trace as an interactive page, in one file")
    arguments.takes_json(sub)
    sub.add_argument("words", nargs=argparse.REMAINDER, metavar="ARGS", help="the program's arguments")


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
    return console.exit_code(outcomes, asked=True)


def _compilers(options: argparse.Namespace) -> int:
    """Show a step's kernels by both compilers side by side, and the hot loops of the successor's."""
    if options.cc or options.show or options.json:
        raise ValueError("--compiler mlir: goes with STEP, --problem and --file, or with --record alone")
    if options.record:
        steps = [step for step in catalog.steps() if not step.requires]
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
    outcomes = list(console.progress("compile", compiled, steps, console.compiled_line))
    console.print_outcomes(tables.compiled(outcomes, (run.CODE_ARCHITECTURE,)), outcomes)
    code = console.exit_code(outcomes, asked=True)
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
        taken = zip(pairs, found, strict=True)
        _write_page(options, [(step, traces.of(one, at), options.file or step.path) for (step, at), one in taken])
    compared = traces.comparison(named) if len(named) == 2 else None
    if options.json:
        entries = [{"step": name, **to_builtins(one)} for name, one in named.items()]
        told = {"steps": entries, "comparison": compared} if compared else entries[0]
        console.print_json(told)
    else:
        for (step, problem), one in zip(pairs, found, strict=True):
            console.print_trace(step, problem, one, shape is None)
        if compared:
            console.say().print(escape(compared), soft_wrap=True)
    return WRONG if any(kernel.faults for one in found for kernel in one.kernels) else RIGHT


def _write_page(options: argparse.Namespace, shown: list[tuple[Step, traces.StepTrace, Path]]) -> None:
    """Write the page of traces, each of a file in the place of its step."""
    from common.book import costs, explorer

    store.write(options.html, explorer.page([costs.Shown(*one) for one in shown]))
    console.say(options).print(f"written: {escape(str(options.html))}", soft_wrap=True)


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


# --- any program ---


def _own_options(options: argparse.Namespace) -> list[str]:
    """The program's arguments; options of this command may stand among them, up to ``--``."""
    mine = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    mine.add_argument("--stop", action="store_true", default=options.stop)
    mine.add_argument("--json", action="store_true", default=options.json)
    mine.add_argument("--html", type=Path, default=options.html)
    # argparse drops a -- that comes first from what remains, so it is looked for in what was typed
    after = options.given[options.given.index("--") + 1 :] if "--" in options.given else []
    before = options.words[: len(options.words) - len(after)]
    found, rest = mine.parse_known_args(before[:-1] if before[-1:] == ["--"] else before)
    options.stop, options.json, options.html = found.stop, found.json, found.html
    return rest + after


def _run(options: argparse.Namespace) -> int:
    words = _own_options(options)
    path: Path = options.script
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    if options.html is not None:
        arguments.require_page(options.html)
    kept = traces.KEPT if options.html is not None else 0
    with _passed_on(options.json) as (output, errors):
        task = Script(
            path=str(path.resolve()), ladder="", folder=os.getcwd(), words=words, stop=options.stop, kept=kept,
            output=output, errors=errors, within=_IN_ALL,
        )  # fmt: skip
        ((_, found),) = isolate.run([task], True, _SECONDS)
    if options.html is not None:
        _write_program(options, path, found)
    code = _code(found)
    if options.json:
        console.print_json(_told(found, code))
    else:
        _print(path, found)
    return code


def _write_program(options: argparse.Namespace, path: Path, found: ScriptResult) -> None:
    kernels = [kernel for kernel in found.kernels if Path(kernel.file).is_file()]
    if not kernels:
        console.complain(f"[yellow]{escape(str(options.html))}: not written, as no kernel of a file ran[/]")
        return
    nobody = Step(path.stem, "", "gemm", None, Path(), path.name, experiment=True)
    _write_page(options, [(nobody, traces.of(Traced("", {}, kernels), path.name), path.resolve())])


def _code(found: ScriptResult) -> int:
    if found.others or any(kernel.faults for kernel in found.kernels):
        return WRONG
    return RIGHT if found.status == "right" and not found.unknown else UNUSABLE


def _unknown(found: ScriptResult) -> list[str]:
    """What the tracer does not know, or why the program has no end."""
    return [*found.unknown, *([found.message] if found.message else [])]


@contextmanager
def _passed_on(aside: bool) -> Iterator[tuple[str, str]]:
    """Two files that a program prints to; what comes is passed on at once, to standard error alone beside JSON."""
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder, "output"), Path(folder, "errors")
        for file in files:
            file.touch()
        done = threading.Event()
        targets = (sys.stderr if aside else sys.stdout), sys.stderr
        thread = threading.Thread(target=_pass_on, args=(list(zip(files, targets, strict=True)), done), daemon=True)
        thread.start()
        try:
            yield str(files[0]), str(files[1])
        finally:
            done.set()
            thread.join()


def _pass_on(pairs: list[tuple[Path, TextIO]], done: threading.Event) -> None:
    decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in pairs]  # a sign may come in two parts
    with pairs[0][0].open("rb") as first, pairs[1][0].open("rb") as second:
        over = False
        while not over:
            over = done.wait(_POLL_SECONDS)
            for source, decoder, (_, target) in zip((first, second), decoders, pairs, strict=True):
                try:
                    target.write(decoder.decode(source.read(), final=over))
                    target.flush()
                except OSError:
                    console.discard(target)


# --- what is said ---


def _print(path: Path, found: ScriptResult) -> None:
    say = console.say()
    for kernel in found.kernels:
        say.print(f"[dim]{escape(traces.summary(kernel))}[/]", soft_wrap=True)
    for one in traces.dearest(found.kernels):
        say.print(escape(one), soft_wrap=True)
    for note in _notes(found):
        say.print(escape(note), soft_wrap=True)
    for fault in found.others:
        where = f"{path.name}:{fault.line}: " if fault.line else f"{path.name}: "
        say.print(f"[bold red]{escape(where + fault.what)}[/]", soft_wrap=True)
        _print_code(say, fault)
    for kernel in found.kernels:
        for fault in kernel.faults:
            text = f"{_named(kernel)}{traces.fault_sentence(fault)}"
            say.print(f"[bold red]{escape(text)}[/]", soft_wrap=True)
            _print_code(say, fault)
    for text in _unknown(found):
        say.print(f"[yellow]Not known to the tracer:[/] {escape(text)}", soft_wrap=True)
    if _code(found) == RIGHT:
        launched = sum(kernel.launches for kernel in found.kernels)
        text = f"in {launched:,} launches: {traces.NO_FAULT}" if launched else "as no kernel was launched"
        say.print(f"[green]No fault[/] {text}.", soft_wrap=True)


def _print_code(say: Any, fault: Fault) -> None:
    if fault.code:
        say.print(f"    {escape(fault.code)}", soft_wrap=True)
    if fault.look_at:
        say.print(f"    [dim]look at {escape(fault.look_at)}[/]", soft_wrap=True)


def _named(kernel: TracedKernel) -> str:
    return f"{Path(kernel.file).name}, {kernel.name}, "


def _notes(found: ScriptResult) -> list[str]:
    kernels = [f"{_named(kernel)}{note}." for kernel in found.kernels for note in kernel.notes]
    return [*kernels, *(f"{note[0].upper()}{note[1:]}." for note in found.notes)]


def _told(found: ScriptResult, code: int) -> dict[str, Any]:
    """The result as JSON has it."""
    faults = [{"file": None, "kernel": None, **to_builtins(fault)} for fault in found.others]
    faults += [
        {"file": kernel.file, "kernel": kernel.name, **to_builtins(fault), "name": UNSOUND[fault.kind]}
        for kernel in found.kernels
        for fault in kernel.faults
    ]
    status = {RIGHT: "nothing found", WRONG: "faults", UNUSABLE: "unknown"}[code]
    return {
        "status": status, "faults": faults, "unknown": _unknown(found), "notes": _notes(found),
        "kernels": to_builtins(found.kernels),
    }  # fmt: skip
