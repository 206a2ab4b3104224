"""Which stage of its work a process is at, so that a time limit can say what took so long.

Stages lie within stages: the inner one is told.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

KERNEL, ORACLE, COMPILE, IMPORTS = "kernel", "oracle", "compiler", "imports"

_open: list[str] = []
_signs = itertools.count(1)
_sign = 0


@contextlib.contextmanager
def stage(name: str) -> Iterator[None]:
    """What happens meanwhile in this process is of this stage."""
    _open.append(name)
    advance()
    try:
        yield
    finally:
        _open.pop()
        advance()


def now() -> tuple[str, int]:
    """The innermost stage, empty if there is none, and a number that changes with each sign that work goes on."""
    return (_open or [""])[-1], _sign


def advance() -> None:
    """Give a sign that work goes on: a stage began or ended, or a part of it is done."""
    global _sign
    _sign = next(_signs)
