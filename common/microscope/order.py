"""What happened before what, for threads, barriers and copies: vector clocks, and who touched shared memory last.

A thread's clock is a row: for each thread, fence, barrier and reader a column, how far the row's thread knows it to
have come. What has a column and a tag is done for a thread whose row has reached the tag in that column.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.int32]

NEVER = 1 << 30  # a tag that no clock reaches: a copy that only its own thread can wait for
CELL = 2  # bytes that are told apart


class Clocks:
    """A row per thread; the first columns are the threads' own, which count what each has handed on."""

    def __init__(self, threads: int) -> None:
        self.rows = np.zeros((threads, 2 * threads + 64), np.int32)
        self.of_barrier = np.zeros(self.rows.shape[1], np.bool_)
        self.used = threads
        np.fill_diagonal(self.rows, 1)

    def column(self, of_barrier: bool = False) -> int:
        """A new column."""
        if self.used == self.rows.shape[1]:
            self.rows = np.pad(self.rows, ((0, 0), (0, self.used)))
            self.of_barrier = np.pad(self.of_barrier, (0, self.used))
        self.of_barrier[self.used] = of_barrier
        self.used += 1
        return self.used - 1

    def hand_on(self, thread: int, to: Row | None = None) -> Row:
        """What the thread knows, added to what ``to`` holds; what it does from now on is not in it."""
        row = self.rows[thread]
        if to is None:
            to = row.copy()
        else:
            if len(to) < len(row):
                to = np.pad(to, (0, len(row) - len(to)))
            np.maximum(to, row, out=to)
        row[thread] += 1
        return to

    def hear(self, thread: int, known: Row) -> None:
        """From now on the thread knows this, too."""
        row = self.rows[thread, : len(known)]
        np.maximum(row, known, out=row)

    def meet(self, threads: Any) -> None:
        """These threads have waited for each other."""
        together = self.rows[threads].max(0)
        self.rows[threads] = together
        self.rows[threads, threads] += 1


class Seen(NamedTuple):
    """A write that a thread does not know to be there: its line; is it a copy that a barrier counts (``copied``), one
    that is under way whoever waits (``flying``), or one that its own thread has yet to wait for (not ``waited``)?"""

    line: int
    copied: bool
    flying: bool
    waited: bool = True


class Cells:
    """For every cell of a block's tiles: the last write, two reads by threads, and those of the matrix unit."""

    def __init__(self, size: int, clocks: Clocks) -> None:
        count = size // CELL
        self.clocks = clocks
        self.column, self.tag, self.line = (np.zeros(count, np.int32) for _ in range(3))
        self.flying = np.zeros(count, np.bool_)
        self.reader, self.read, self.read_line = (np.zeros((2, count), np.int32) for _ in range(3))
        self.units: dict[int, Row] = {}  # by column: up to which tag a unit reads each cell
        self.unit_lines: dict[tuple[int, int], int] = {}

    # --- writes ---

    def unread(self, where: Any, row: Row) -> int | None:
        """The line of a read of these cells that the row's thread does not know to be done, if there is one."""
        line = self.unread_by_units(where, row)
        if line is not None:
            return line
        for slot in range(2):
            open_ = self.read[slot][where] > row[self.reader[slot][where]]
            if open_.any():
                return int(self.read_line[slot][where][np.argmax(open_)])
        return None

    def unread_by_units(self, where: Any, row: Row) -> int | None:
        """As :meth:`unread`, of the asynchronous units alone."""
        for column, tags in self.units.items():
            latest = int(tags[where].max(initial=0))
            if latest > row[column]:
                return self.unit_lines[column, latest]
        return None

    def unwritten(self, where: Any, row: Row) -> Seen | None:
        """A write to these cells that the row's thread does not know to be there for the asynchronous units."""
        columns, tags, flying = self.column[where], self.tag[where], self.flying[where]
        wrong = (tags > row[columns]) | flying
        if not wrong.any():
            return None
        at = int(np.argmax(wrong))
        copied = bool(self.clocks.of_barrier[columns.flat[at]])
        return Seen(int(self.line[where].flat[at]), copied, bool(flying.flat[at]), bool(tags.flat[at] < NEVER))

    def never_written(self, where: Any) -> bool:
        """Do some of these cells hold what nobody wrote?"""
        return not self.tag[where].all()

    def write(self, where: Any, column: int, tag: int, line: int, flying: bool = False) -> None:
        self.column[where], self.tag[where], self.line[where] = column, tag, line
        self.flying[where] = flying
        self.read[:, where] = 0

    # --- reads ---

    def note_unit(self, where: Any, column: int, tag: int, line: int) -> None:
        """A unit reads these cells from now until those who wait for it know ``tag`` in its column."""
        tags = self.units.get(column)
        if tags is None:
            tags = self.units[column] = np.zeros(len(self.tag), np.int32)
        tags[where] = tag
        self.unit_lines[column, tag] = line

    def note_read(self, start: int, stop: int, thread: int, row: Row, line: int) -> None:
        """A thread reads. Of two readers before it, one that it knows of makes room."""
        where = slice(start, stop)
        known = self.read[0][where] <= row[self.reader[0][where]]
        if not known.all():
            for part in (self.reader, self.read, self.read_line):
                part[1][where] = part[0][where]
        self.reader[0][where], self.read[0][where], self.read_line[0][where] = thread, row[thread], line

    def not_copied(self, start: int, stop: int, row: Row) -> Seen | None:
        """A copy to these cells that the row's thread has not waited for."""
        where = slice(start, stop)
        columns = self.column[where]
        wrong = self.flying[where] | (self.clocks.of_barrier[columns] & (self.tag[where] > row[columns]))
        if not wrong.any():
            return None
        at = start + int(np.argmax(wrong))
        return Seen(int(self.line[at]), True, bool(self.flying[at]))
