"""The command line: ``python -m common ...`` and the lessons' ``python -m lessons.NN_name``."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from rich.markup import escape

from common.catalog import device
from common.check import compiling, run
from common.commands import (
    arguments,
    bench,
    console,
    edits,
    exercising,
    inspecting,
    lessons,
    pictures,
    scripts,
    steps,
)
from common.commands.console import UNREAD, UNUSABLE
from common.run import isolate, process, stages
from common.timing import tools
from common.trace.state import TraceError

_COMMANDS = (exercising, steps, inspecting, edits, scripts, pictures, bench)  # a learner's first
_SWITCHES = (
    f"{device.CARD_SWITCH}=8.6 in the environment gives steps the limits of a card of that compute capability; "
    f"{device.COMPILER_SWITCH}={device.MLIR} has numba-cuda-mlir compile what a GPU runs."
)
_SIGNALLED = 128  # and the signal's number, as a shell has it
USER_ERRORS = (
    ValueError, OSError, device.NoGpuError, run.DeviceError, compiling.ToolError,
    tools.ToolError, TraceError,
)  # fmt: skip


def main(words: Sequence[str] | None = None) -> int:
    """Run a command of ``python -m common``; returns the exit code."""
    words = sys.argv[1:] if words is None else words
    options = common_parser().parse_args(words)
    options.given = list(words)
    return _guarded(options)


def lesson_main(
    lesson: str, words: Sequence[str] | None = None, own: Mapping[str, Callable[[], arguments.Parser]] | None = None
) -> int:
    """Run a lesson: check its steps, time them against the previous ones, print the table.

    ``own`` are commands that only this lesson has: if the first word is one, the rest are its parser's.
    """
    words = sys.argv[1:] if words is None else words
    if own and words and words[0] in own:
        options = own[words[0]]().parse_args(words[1:])
        return _guarded(options, needs_gpu=not getattr(options, "sim", True))
    return _guarded(lessons.parser(lesson, tuple(own or ())).parse_args(words))


def common_parser() -> arguments.Parser:
    """The commands of ``python -m common``, and their options."""
    what = "Check, grade, time and inspect the workbook's kernels."
    parser = arguments.Parser(prog="python -m common", description=what, epilog=_SWITCHES)
    known = arguments.Commands(parser)
    for module in _COMMANDS:
        module.commands(known)
    return parser


def _guarded(options: argparse.Namespace, needs_gpu: bool = False) -> int:
    """Do the command: what a user can mend becomes one line and exit code 2, and a signal a tidy end."""
    isolate.reopen()
    for stream in filter(None, (sys.stdout, sys.stderr)):  # a sign that the terminal's or file's encoding lacks
        with suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")
    try:
        with _signals() as came:
            if sys.stdout is None:
                raise ValueError("standard output is closed")
            device.played()  # what the environment asks for and is not there is said before anything else
            device.compiler()
            if needs_gpu:
                device.ready()
            with stages.stage("the command's own process"):
                code = int(options.command(options))
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read has had enough: `| head`
        console.discard(sys.stdout)
        return UNREAD
    except USER_ERRORS as error:
        text = str(error) or type(error).__name__
        if isinstance(error, OSError) and error.strerror:
            text = f"{error.filename or 'standard output'}: {error.strerror}"
            if error.filename is None:  # the interpreter would complain once more as it ends
                console.discard(sys.stdout)
        with suppress(OSError):
            if options.json and sys.stdout is not None:
                print(json.dumps({"error": text}), flush=True)
        console.complain(f"[bold red]error:[/] {escape(text)}")
        return UNUSABLE
    except KeyboardInterrupt:
        number = came[0] if came else signal.SIGINT
        with suppress(OSError):  # a terminal that has hung up
            said = f"ended by {signal.Signals(number).name}: what was written so far is kept"
            console.say(options).print(said)
            sys.stdout.flush()
        return _SIGNALLED + number


@contextmanager
def _signals() -> Iterator[list[int]]:
    """While open, the first signal to end stops all work that is waited for and raises KeyboardInterrupt; the second
    ends the program at once. Yields the list that the first one's number goes into."""
    came: list[int] = []

    def end(number: int, _: object) -> None:
        isolate.close()
        if came:
            os._exit(_SIGNALLED + number)
        came.append(number)
        raise KeyboardInterrupt

    before: dict[int, Any] = {}
    process.on_wait = _let_wait
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            # what whoever started this wants ignored (nohup) stays so
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, end)
    try:
        yield came
    finally:
        process.on_wait = None
        try:
            if came:
                isolate.cool()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _let_wait(subject: str, seconds: float) -> None:
    console.complain(f"[dim]{escape(subject)}: still at work; it has {seconds:.0f} s[/]")
