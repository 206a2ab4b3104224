"""The command ``run``: any Numba CUDA program, its kernels in the tracer."""

from __future__ import annotations

import argparse
import codecs
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from msgspec import to_builtins
from rich.markup import escape

from common.catalog import store
from common.catalog.catalog import Step
from common.commands import arguments, console
from common.commands.console import RIGHT, UNUSABLE, WRONG
from common.explain.faults import UNSOUND, Fault
from common.report import traces
from common.run import isolate
from common.trace.messages import Script, ScriptResult, Traced, TracedKernel

_SECONDS, _IN_ALL = 120.0, 3600.0  # for one group of blocks, or the host's code between launches; and for a program
_POLL_SECONDS = 0.05


def commands(known: arguments.Commands) -> None:
    text = "run any Numba CUDA program in the tracer, without a GPU; report its faults and costs"
    sub = known.add("run", _run, text)
    sub.add_argument("script", type=Path, metavar="SCRIPT.py", help="the program")
    sub.add_argument("--stop", action="store_true", help="stop after the first launch that has a fault")
    sub.add_argument("--html", type=Path, metavar="OUT", help="write the trace as an interactive page, in one file")
    arguments.takes_json(sub)
    sub.add_argument("words", nargs=argparse.REMAINDER, metavar="ARGS", help="the program's arguments")


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
        _write_page(options, path, found)
    code = _code(found)
    if options.json:
        console.print_json(_told(found, code))
    else:
        _print(path, found)
    return code


def _write_page(options: argparse.Namespace, path: Path, found: ScriptResult) -> None:
    from common.book import explorer

    kernels = [kernel for kernel in found.kernels if Path(kernel.file).is_file()]
    if not kernels:
        console.complain(f"[yellow]{escape(str(options.html))}: not written, as no kernel of a file ran[/]")
        return
    nobody = Step(path.stem, "", "gemm", None, Path(), path.name, experiment=True)
    trace = traces.of(Traced("", {}, kernels), path.name)
    store.write(options.html, explorer.page([explorer.Shown(nobody, trace, path.resolve())]))
    console.say(options).print(f"written: {escape(str(options.html))}", soft_wrap=True)


def _faults(found: ScriptResult) -> list[Fault]:
    return [*found.others, *(fault for kernel in found.kernels for fault in kernel.faults)]


def _code(found: ScriptResult) -> int:
    if _faults(found):
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
