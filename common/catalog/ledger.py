"""Where the time goes: which stage of its work a process is at, and what each took.

Stages within stages count once, for the inner one. What they took is measured and written only where
``WORKBOOK_LEDGER`` names a file, by every process.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from common.catalog import schema

SWITCH = "WORKBOOK_LEDGER"


class Entry(msgspec.Struct):
    """A stage's end, as a process notes it: seconds of wall clock and of CPU."""

    stage: str
    wall: float
    cpu: float


class Spent(msgspec.Struct):
    """Seconds of wall clock and of CPU of all processes together, and how many times."""

    wall: float = 0.0
    cpu: float = 0.0
    times: int = 0


class Run(msgspec.Struct):
    """Seconds of one run, until its first line, too; its exit code, and what each stage took."""

    wall: float
    cpu: float
    first_line: float
    code: int
    stages: dict[str, Spent]


KERNEL, ORACLE, COMPILE, IMPORTS = "kernel", "oracle", "compile", "imports"

_open: list[str] = []
_signs = itertools.count(1)
_sign = 0
_inner: list[list[float]] = []  # of each open stage: wall and CPU seconds of the stages within


@contextlib.contextmanager
def stage(name: str) -> Iterator[None]:
    """What happens meanwhile in this process is of this stage."""
    _open.append(name)
    advance()
    try:
        with _noted(name) if SWITCH in os.environ else contextlib.nullcontext():
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


@contextlib.contextmanager
def _noted(name: str) -> Iterator[None]:
    wall, cpu = time.perf_counter(), time.process_time()
    _inner.append([0.0, 0.0])
    try:
        yield
    finally:
        spent = time.perf_counter() - wall, time.process_time() - cpu
        inner = _inner.pop()
        if _inner:
            _inner[-1] = [total + own for total, own in zip(_inner[-1], spent, strict=True)]
        note(name, spent[0] - inner[0], spent[1] - inner[1])


def note(name: str, wall: float, cpu: float) -> None:
    """Enter seconds of wall clock and of CPU under a stage's name; what cannot be written is left out."""
    if path := os.environ.get(SWITCH):
        line = json.dumps({"stage": name, "wall": wall, "cpu": cpu}) + "\n"
        with contextlib.suppress(OSError), open(path, "a", encoding="utf-8") as file:
            file.write(line)  # one short write: lines of several processes do not mix


def read(path: Path) -> dict[str, Spent]:
    """What was spent by stage, in order of CPU seconds. Raises SchemaError."""
    totals: dict[str, Spent] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = schema.read(json.loads(line), Entry, path.name)
        total = totals.setdefault(entry.stage, Spent())
        total.wall += entry.wall
        total.cpu += entry.cpu
        total.times += 1
    return dict(sorted(totals.items(), key=lambda item: -item[1].cpu))
