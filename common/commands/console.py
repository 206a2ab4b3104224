"""What is said to whoever sits at the terminal: lines, complaints, progress."""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from msgspec import to_builtins
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from common.timing import peers

RIGHT, WRONG, UNUSABLE, UNREAD = 0, 1, 2, 141
Item = TypeVar("Item")
Written = TypeVar("Written")


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


def print_json(found: object) -> None:
    """Print what was found on standard output, as JSON."""
    print(json.dumps(to_builtins(found), indent=1))


def complain(text: str) -> None:
    """Print a line on standard error, if anybody can be told."""
    try:
        _Console(stderr=True, highlight=False).print(text, soft_wrap=True)
    except OSError:
        discard(sys.stderr)


def tried(action: Callable[[], Written]) -> Written | None:
    """What ``action`` writes beside the verdicts; if that fails, it is said and None is returned."""
    try:
        return action()
    except (OSError, ValueError) as error:
        complain(f"[yellow]not kept: {escape(str(error))}[/]")
        return None


def say_kept(count: int, one: str, many: str) -> None:
    """Say how many results were reused because nothing they depend on has changed."""
    if count:
        is_are, what = ("is as new as its", one) if count == 1 else ("are as new as their", many)
        was = "was" if count == 1 else "were"
        say().print(f"{count} {what} {is_are} code and {was} kept")


def say_libraries() -> None:
    """Say how to get the vendor's libraries to compare with, where they are not installed."""
    if not peers.available():
        say().print(peers.HOW_TO_GET)


def progress(
    what: str,
    items: Iterator[Item],
    expected: Sequence[Any],
    line: Callable[[Item], str] | None = None,
    aside: bool = False,
) -> Iterator[Item]:
    """Yield ``items`` and say how far they are: on a terminal a bar, with what is next and the time left, else a line
    for each, if there is a ``line``.

    Lines go to standard output, or to standard error where JSON has that (``aside``).
    """
    stream = sys.stderr if aside else sys.stdout
    if sys.stderr.isatty() and (aside or stream.isatty()):
        yield from _with_bar(what, items, expected)
        return
    out = _Console(stderr=aside, highlight=False)
    out.print(f"{what}: {len(expected)} to do")
    for item in items:
        if line:
            out.print(escape(line(item)), soft_wrap=True)
        yield item


def _with_bar(what: str, items: Iterator[Item], expected: Sequence[Any]) -> Iterator[Item]:
    times = TimeElapsedColumn(), TimeRemainingColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *times)
    names = [_name(one) for one in expected]
    with Progress(*columns, console=_Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"{what} {names[0] if names else ''}", total=len(expected))
        for number, item in enumerate(items, 1):
            bar.update(task, advance=1, description=f"{what} {names[number] if number < len(names) else ''}")
            yield item


def _name(one: Any) -> str:
    """What is done, as the bar names it: a step, a step and its preset, or the name itself."""
    first = one[0] if isinstance(one, tuple) else one
    return escape(str(getattr(first, "name", first if isinstance(first, str) else "")))


def quietly(what: str, items: Iterator[Item], expected: Sequence[Any]) -> Iterator[Item]:
    """As :func:`progress`, for what takes seconds: without a terminal nothing is said."""
    return progress(what, items, expected) if sys.stderr.isatty() and sys.stdout.isatty() else items
