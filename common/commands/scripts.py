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
from typing import TextIO

from msgspec import to_builtins
from rich.markup import escape

from common.commands import console, verdicts
from common.commands.console import RIGHT, UNUSABLE, WRONG
from common.explain.faults import UNSOUND, Fault
from common.report import traces
from common.run import isolate
from common.trace.messages import Script, ScriptResult, Traced

_SECONDS, _IN_ALL = 120.0, 3600.0  # for one group of blocks, or the host's code between launches; and for a program
_POLL_SECONDS = 0.05


def run_script(options: argparse.Namespace) -> int:
    path: Path = options.script
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    kept = traces.KEPT if options.html is not None else 0
    with _passed_on(options.json) as (output, errors):
        task = Script(
            path=str(path.resolve()), ladder="", folder=os.getcwd(), words=options.words, stop=options.stop,
            kept=kept, output=output, errors=errors, within=_IN_ALL,
        )  # fmt: skip
        ((_, found),) = isolate.run([task], True, _SECONDS)
    if options.html is not None:
        kernels = [kernel for kernel in found.kernels if Path(kernel.file).is_file()]
        if kernels:
            verdicts.write_page([(path.name, traces.of(Traced("", {}, kernels), path.name))], options)
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
    notes: list[str] = []
    faults: list[dict[str, object]] = []
    told: list[tuple[str, Fault]] = []
    for fault in found.others:  # the program's own
        faults.append({"file": None, "kernel": None, **to_builtins(fault)})
        place = f"{path.name}:{fault.line}" if fault.line else path.name
        told.append((f"{place}: {fault.what}", fault))
    for kernel in found.kernels:
        where = f"{Path(kernel.file).name}, {kernel.name}, "
        notes += [f"{where}{note}." for note in kernel.notes]
        for fault in kernel.faults:
            named = {**to_builtins(fault), "name": UNSOUND[fault.kind]}
            faults.append({"file": kernel.file, "kernel": kernel.name, **named})
            told.append((f"{where}{traces.fault_sentence(fault)}", fault))
    notes += [f"{note[0].upper()}{note[1:]}." for note in found.notes]
    lines = [f"[dim]{escape(traces.summary(kernel))}[/]" for kernel in found.kernels]
    lines += [escape(line) for line in (*traces.dearest(found.kernels), *notes)]
    for said, fault in told:
        lines.append(f"[bold red]{escape(said)}[/]")
        lines += [f"    {escape(fault.code)}"] if fault.code else []
        lines += [f"    [dim]look at {escape(fault.look_at)}[/]"] if fault.look_at else []
    lines += [f"[yellow]Not known to the tracer:[/] {escape(text)}" for text in unknown]
    code = WRONG if faults else RIGHT if found.status == "right" and not found.unknown else UNUSABLE
    if code == RIGHT:
        launched = sum(kernel.launches for kernel in found.kernels)
        text = f"in {launched:,} launches: {traces.NO_FAULT}" if launched else "as no kernel was launched"
        lines.append(f"[green]No fault[/] {text}.")
    status = {RIGHT: "nothing found", WRONG: "faults", UNUSABLE: "unknown"}[code]
    answer: dict[str, object] = {"status": status, "faults": faults, "unknown": unknown, "notes": notes}
    return code, {**answer, "kernels": found.kernels}, lines


@contextmanager
def _passed_on(aside: bool) -> Iterator[tuple[str, str]]:
    """Two files that a program prints to; what comes is passed on at once, to standard error alone beside JSON."""
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder, "output"), Path(folder, "errors")
        targets = {output: sys.stderr if aside else sys.stdout, errors: sys.stderr}
        readers = [(codecs.getreader("utf-8")(file.open("w+b"), "replace"), to) for file, to in targets.items()]
        done = threading.Event()
        thread = threading.Thread(target=_pass_on, args=(readers, done), daemon=True)
        thread.start()
        try:
            yield str(output), str(errors)
        finally:
            done.set()
            thread.join()
            for reader, _ in readers:
                reader.close()


def _pass_on(readers: list[tuple[codecs.StreamReader, TextIO]], done: threading.Event) -> None:
    over = False
    while not over:
        over = done.wait(_POLL_SECONDS)
        for reader, target in readers:
            try:
                target.write(reader.read())
                target.flush()
            except OSError:
                console.discard(target)
