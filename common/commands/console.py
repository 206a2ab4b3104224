"""What is said to whoever sits at the terminal: lines, complaints, progress."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from common.commands import flow
from common.edit import history

RIGHT, WRONG, UNUSABLE, UNREAD = 0, 1, 2, 141
Item = TypeVar("Item")
Kept = TypeVar("Kept")


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Whoever read has had enough: rich's own way ends the program as one ends that has found something wrong."""
        raise BrokenPipeError(errno.EPIPE, "nobody reads this any more")


def tell(text: str) -> None:
    """Print a last line, if it can be."""
    try:
        print(text, flush=True)
    except OSError:
        drop(sys.stdout)


def drop(stream: Any) -> None:
    """What is printed there from now on goes nowhere: the interpreter flushes it as it ends."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say(options: argparse.Namespace | None = None) -> Console:
    """Where people read: standard output, or standard error beside JSON."""
    return _Console(stderr=bool(options and options.json), highlight=False)


def complain(text: str) -> None:
    try:
        _Console(stderr=True, highlight=False).print(text, soft_wrap=True)
    except OSError:  # nobody can be told
        drop(sys.stderr)


def tried(action: Callable[[], Kept]) -> Kept | None:
    """What is written beside the verdicts; it is said if that fails."""
    try:
        return action()
    except (OSError, ValueError, history.HistoryError) as error:
        complain(f"[yellow]not kept: {escape(str(error))}[/]")
        return None


def say_kept(count: int, one: str, many: str) -> None:
    if count:
        is_are, what = ("is as new as its", one) if count == 1 else ("are as new as their", many)
        was = "was" if count == 1 else "were"
        say().print(f"{count} {what} {is_are} code and {was} kept")


def progress(
    what: str, items: Iterator[Item], expected: Sequence[Any], line: flow.Line | None = None, aside: bool = False
) -> Iterator[Item]:
    """Say how far ``items`` are as they come in: a bar on a terminal, else a line for each, if there is a ``line``.

    Lines go to standard output, or to standard error where JSON has that (``aside``).
    """
    stream = sys.stderr if aside else sys.stdout
    if sys.stderr.isatty() and (aside or stream.isatty()):
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=_Console(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=len(expected))
            for item in items:
                bar.advance(task)
                yield item
        return
    say = _Console(stderr=aside, highlight=False)
    say.print(f"{what}: {len(expected)} to do")
    for item in items:
        if line:
            say.print(escape(line(item)), soft_wrap=True)
        yield item


def quietly(what: str, items: Iterator[Item], expected: Sequence[Any]) -> Iterator[Item]:
    """As :func:`progress`, for what takes seconds: without a terminal nothing is said."""
    return progress(what, items, expected) if sys.stderr.isatty() and sys.stdout.isatty() else items
