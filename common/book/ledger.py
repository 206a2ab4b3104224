"""Where the time goes: with ``WORKBOOK_LEDGER`` naming a file, every process notes what each stage of its work took.

Stages within stages count once, for the inner one. Without that variable nothing is measured or written.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from common.book import schema

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


_inner: list[list[float]] = []  # of each open stage: wall and CPU seconds of the stages within


@contextlib.contextmanager
def stage(name: str) -> Iterator[None]:
    """What happens meanwhile in this process is of this stage."""
    if SWITCH not in os.environ:
        yield
        return
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
