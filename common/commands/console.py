"""What is said to whoever sits at the terminal: lines, complaints, progress; and the exit codes."""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
from collections.abc import Callable, Iterator, Sized
from contextlib import suppress
from typing import Any, TypeVar

from msgspec import to_builtins
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

RIGHT, WRONG, UNUSABLE, UNREAD = 0, 1, 2, 141
Item = TypeVar("Item")


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError when nobody reads any more: rich would exit with the code of a wrong step."""
        raise BrokenPipeError(errno.EPIPE, "nobody reads this any more")


def discard(stream: Any) -> None:
    """Send what is still printed to ``stream`` nowhere: the interpreter flushes it as it ends."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say(options: argparse.Namespace | None = None) -> Console:
    """Where people read: standard output, or standard error beside JSON."""
    return _Console(stderr=bool(options and options.json), highlight=False)


def tell(*lines: str, options: argparse.Namespace | None = None) -> bool:
    """Print lines in rich's markup there, each unbroken; were there any?"""
    for line in lines:
        say(options).print(line, soft_wrap=True)
    return bool(lines)


def print_json(found: object) -> None:
    print(json.dumps(to_builtins(found), indent=1))


def complain(text: str) -> None:
    """Print a line in rich's markup on standard error, if anybody can be told."""
    with suppress(OSError):
        _Console(stderr=True, highlight=False).print(text, soft_wrap=True)


def warn(text: str) -> None:
    complain(f"[yellow]{escape(text)}[/]")


def blame(text: str) -> None:
    complain(f"[bold red]error:[/] {escape(text)}")


def say_kept(count: int, what: str) -> None:
    """Say how many results were reused because nothing they depend on has changed."""
    if count:
        tell(f"{what} that are as new as the code, and were kept: {count}")


def progress(
    what: str, items: Iterator[Item], expected: Sized, line: Callable[[Item], str] | None = None, aside: bool = False
) -> Iterator[Item]:
    """Yield ``items`` and say how far they are: on a terminal a bar with what came last, else a line for each, if
    there is a ``line``; on standard error where JSON has standard output (``aside``)."""
    if sys.stderr.isatty() and (aside or sys.stdout.isatty()):
        with Progress(console=_Console(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=len(expected))
            for item in items:
                bar.update(task, advance=1, description=escape(line(item)) if line else what)
                yield item
        return
    out = _Console(stderr=aside, highlight=False)
    if line:
        out.print(f"{what}: {len(expected)} to do")
    for item in items:
        if line:
            out.print(escape(line(item)), soft_wrap=True)
        yield item
