"""The command line: ``python -m common ...`` and the lessons' ``python -m lessons.NN_name``."""

from __future__ import annotations

import argparse
import errno
import json
import os
import signal
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from rich.markup import escape

from common.catalog import device, ledger
from common.commands import (
    arguments,
    console,
    edits,
    exercising,
    lessons,
    machinecode,
    mainjob,
    measuring,
    pictures,
    renewing,
    steps,
    tracing,
    web,
)
from common.commands.console import UNREAD, UNUSABLE
from common.edit import history
from common.jobs import messages, run
from common.run import isolate
from common.run.messages import Result, Task
from common.timing import profiler, sanitizer
from common.trace.state import TraceError

_COMMANDS = (steps, measuring, renewing, machinecode, tracing, edits, exercising, pictures, web, mainjob)
_PLAYED = f"The environment's {device.CARD_SWITCH}=8.6 gives steps the limits of a card of that compute capability."
_SIGNALLED = 128  # and the signal's number, as a shell has it
USER_ERRORS = (
    ValueError, OSError, device.NoGpuError, run.DeviceError, run.ToolError,
    profiler.ProfileError, sanitizer.SanitizerError, TraceError, history.HistoryError,
)  # fmt: skip
_UNWRITTEN = (errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EBADF)
_ENDING = ("SIGINT", "SIGTERM", "SIGHUP")
_AGAIN_SECONDS = 2.0  # a second signal that comes later than this ends the program at once


def main(words: Sequence[str] | None = None) -> int:
    """Run a command of ``python -m common``; returns the exit code."""
    return _guarded(arguments.read(common_parser(), words))


def lesson_main(
    lesson: str, words: Sequence[str] | None = None, own: Mapping[str, Callable[[], arguments.Parser]] | None = None
) -> int:
    """Run a lesson: check its steps, time them against the previous ones, print the table.

    ``own`` are commands that only this lesson has: if the first word is one, the rest are its parser's.
    """
    words = sys.argv[1:] if words is None else words
    if own and words and words[0] in own:
        options = arguments.read(own[words[0]](), words[1:])
        command, options.command = options.command, lambda given: _with_gpu(command, given)
    else:
        options = arguments.read(lessons.parser(lesson, tuple(own or ())), words)
    return _guarded(options)


def _with_gpu(command: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Do a lesson's own command; raises NoGpuError first at a GPU that cannot be used."""
    if not getattr(options, "sim", True):
        device.ready()
    return command(options)


def common_parser() -> arguments.Parser:
    """The commands of ``python -m common``, and their options."""
    parser = arguments.Parser(prog="python -m common", description="The workbook's harness.", epilog=_PLAYED)
    known = arguments.Commands(parser)
    for module in _COMMANDS:
        module.commands(known)
    return parser


class _Ended(BaseException):
    """A signal other than Ctrl-C's asks the program to end."""


def _guarded(options: argparse.Namespace) -> int:
    """Do the command: what a user can mend becomes one line and exit code 2, and a signal a tidy end."""
    isolate.reopen()
    for stream in filter(None, (sys.stdout, sys.stderr)):  # a sign that the terminal's or file's encoding lacks
        with suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")
    try:
        with _signals() as came:
            if sys.stdout is None:
                raise ValueError("standard output is closed")
            device.played()  # what cannot be played is said before anything else
            with ledger.stage("the command's own process"):
                code = int(options.command(options))
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read has had enough: `| head`
        console.drop(sys.stdout)
        return UNREAD
    except USER_ERRORS as error:
        text = str(error) or type(error).__name__
        if isinstance(error, OSError) and error.strerror:
            place = error.filename
            if place is None and error.errno in _UNWRITTEN:  # what is opened is named, what is written to is not
                place = _unwritten(error.errno)
            text = f"{place}: {error.strerror}" if place else error.strerror
        if options.json and sys.stdout is not None:
            console.tell(json.dumps({"error": text}))
        console.complain(f"[bold red]error:[/] {escape(text)}")
        return UNUSABLE
    except (KeyboardInterrupt, _Ended):
        number = came[0] if came else signal.SIGINT
        what = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
        with suppress(OSError):  # a terminal that has hung up
            console.say(options).print(f"{what}: what was written so far is kept")
            sys.stdout.flush()
        return _SIGNALLED + number


def _unwritten(number: int) -> str:
    """What could not be written, where the system has not said: a file that is full is not standard output if that
    is a pipe or a terminal, or lies where there is room."""
    with suppress(OSError, ValueError, AttributeError):
        handle = sys.stdout.fileno()
        mode = os.fstat(handle).st_mode
        endless = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(handle)
        room = number == errno.ENOSPC and stat.S_ISREG(mode) and os.fstatvfs(handle).f_bavail > 0
        if number in (errno.ENOSPC, errno.EFBIG) and (endless or room):
            return f"a file in {tempfile.gettempdir()} (TMPDIR may name another folder)"
    console.drop(sys.stdout)
    return "standard output"


@contextmanager
def _signals() -> Iterator[list[int]]:
    """While open, a signal to end is noted, stops all work that is waited for, and is raised."""
    came: list[int] = []
    moment = 0.0

    def end(number: int, _: object) -> None:
        nonlocal moment
        isolate.close()
        if came and time.monotonic() - moment < _AGAIN_SECONDS:
            return  # the end that the first one began is under way
        if came:
            os._exit(_SIGNALLED + number)
        came.append(number)
        moment = time.monotonic()
        raise KeyboardInterrupt if number == signal.SIGINT else _Ended

    before: dict[int, Any] = {}
    isolate.on_wait = _let_wait
    if threading.current_thread() is threading.main_thread():
        for name in _ENDING:
            number = getattr(signal, name, None)
            # what whoever started this wants ignored (nohup) stays so
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, end)
    try:
        yield came
    finally:
        try:
            if came:
                isolate.cool()
        finally:
            isolate.on_wait = None
            for number, handler in before.items():
                signal.signal(number, handler)


def _let_wait(task: Task[Result], seconds: float) -> None:
    if isinstance(task, messages.Prepare):
        return  # nobody waits for that
    console.complain(f"[dim]{escape(task.subject)}: still at work; it has {seconds:.0f} s[/]")
