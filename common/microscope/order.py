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
_NOWHERE = -1


class Clocks:
    """A row per thread; the first columns are the threads' own, which count what each has handed on."""

    def __init__(self, threads: int) -> None:
        self.rows = np.zeros((threads, 2 * threads + 64), np.int32)
        self.of_barrier = np.zeros(self.rows.shape[1], np.bool_)  # what copies bring, by the phase that counts it
        self.of_phases = np.zeros(
            self.rows.shape[1], np.int32
        )  # phases, which each knows who can only come after them
        self.used = threads
        np.fill_diagonal(self.rows, 1)

    def column(self, of_barrier: bool = False, of_phases: bool = False) -> int:
        """A new column."""
        if self.used == self.rows.shape[1]:
            self.rows = np.pad(self.rows, ((0, 0), (0, self.used)))
            self.of_barrier = np.pad(self.of_barrier, (0, self.used))
            self.of_phases = np.pad(self.of_phases, (0, self.used))
        self.of_barrier[self.used], self.of_phases[self.used] = of_barrier, of_phases
        self.used += 1
        return self.used - 1

    def phases(self, thread: int) -> Row:
        """Of what the thread knows the phases alone: all that a copy it asks for tells of."""
        told: Row = self.rows[thread] * self.of_phases
        return told

    def hand_on(self, thread: int, to: Row | None = None) -> Row:
        """What the thread knows, added to what ``to`` holds; what it does from now on is not in it."""
        row = self.rows[thread]
        to = joined(to, row)
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


def joined(first: Row | None, second: Row) -> Row:
    """What either knows; ``first`` may be changed."""
    if first is None:
        return second.copy()
    if len(first) < len(second):
        first = np.pad(first, (0, len(second) - len(first)))
    np.maximum(first[: len(second)], second, out=first[: len(second)])
    return first


class Seen(NamedTuple):
    """A write that a thread does not know to be there, by its line.

    Is it a copy that a barrier counts (``copied``), one that is under way (``flying``), although the thread has
    waited for the phase (``early``), or one that its own thread has yet to wait for (not ``waited``)? ``column`` is
    where it is to be known from.
    """

    line: int
    column: int
    copied: bool
    flying: bool
    early: bool
    waited: bool


class Cells:
    """For every cell of a block's tiles: the last write, two reads by threads, and those of the matrix unit."""

    def __init__(self, size: int, clocks: Clocks) -> None:
        count = size // CELL
        self.clocks = clocks
        self.column, self.tag, self.line = (np.zeros(count, np.int32) for _ in range(3))
        self.writer, self.wrote = (np.zeros(count, np.int32) for _ in range(2))  # of threads, for threads
        self.row, self.place = (
            np.full(count, _NOWHERE, np.int16) for _ in range(2)
        )  # in the box that was copied here
        self.flying = np.zeros(count, np.bool_)
        self.reader, self.read, self.read_line = (np.zeros((2, count), np.int32) for _ in range(3))
        self.units: dict[int, Row] = {}  # by column: up to which tag a unit reads each cell
        self.unit_lines: dict[tuple[int, int], int] = {}
        # of each cell the unit that was the last to read it, and up to which tag; have others read it, too?
        self.unit, self.unit_tag = np.full(count, _NOWHERE, np.int32), np.zeros(count, np.int32)
        self.by_several = np.zeros(count, np.bool_)
        # what lets most accesses be found well without a look at their cells
        self._latest: dict[int, int] = {}  # of a unit: the highest tag
        self._filled = self._read_by_threads = False

    # --- writes ---

    def unread(self, where: Any, row: Row) -> int | None:
        """The line of a read of these cells that the row's thread does not know to be done, if there is one."""
        line = self.unread_by_units(where, row)
        if line is None and (other := self.unread_by_threads(where, row)):
            line = other[0]
        return line

    def unread_by_units(self, where: Any, row: Row) -> int | None:
        """As :meth:`unread`, of the asynchronous units alone."""
        for column, tags in self.units.items():
            if self._latest[column] > row[column]:
                latest = int(tags[where].max(initial=0))
                if latest > row[column]:
                    return self.unit_lines[column, latest]
        return None

    def unread_by_threads(self, where: Any, row: Row) -> tuple[int, int] | None:
        """As :meth:`unread`, of threads alone: the line, and the thread."""
        for slot in range(2 if self._read_by_threads else 0):
            readers = self.reader[slot][where]
            open_ = self.read[slot][where] > row[readers]
            if open_.any():
                at = int(np.argmax(open_))
                return int(self.read_line[slot][where][at]), int(readers[at])
        return None

    def unwritten(self, where: Any, row: Row) -> Seen | None:
        """A write to these cells that the row's thread does not know to be there for the asynchronous units."""
        columns, tags, flying = self.column[where], self.tag[where], self.flying[where]
        late = tags > row[columns]
        return self._seen(where, late | flying, late)

    def _seen(self, where: Any, wrong: Any, late: Any) -> Seen | None:
        if not wrong.any():
            return None
        at = int(np.argmax(wrong))
        line, column, tag = (int(part[where].flat[at]) for part in (self.line, self.column, self.tag))
        flying, early = bool(self.flying[where].flat[at]), not late.flat[at]
        return Seen(line, column, bool(self.clocks.of_barrier[column]), flying, early, tag < NEVER)

    def unwritten_by_threads(self, where: Any, row: Row) -> tuple[int, int] | None:
        """The line and thread of an ordinary write to these cells that the row's thread does not know of."""
        writers = self.writer[where]
        wrong = self.wrote[where] > row[writers]
        if not wrong.any():
            return None
        at = int(np.argmax(wrong))
        return int(self.line[where][at]), int(writers[at])

    def never_written(self, where: Any) -> bool:
        """Do some of these cells hold what nobody wrote?"""
        return not self.tag[where].all()

    def write(self, where: slice, column: int, tag: int, line: int, thread: int, row: Row) -> None:
        """A thread writes; the asynchronous units find it once its ``column`` comes to ``tag``."""
        self.column[where], self.tag[where], self.line[where] = column, tag, line
        self.writer[where], self.wrote[where] = thread, row[thread]
        self.row[where] = self.place[where] = _NOWHERE
        self.flying[where] = False
        if self._read_by_threads:
            self.read[:, where] = 0

    def own(self, where: slice, column: int, thread: int, row: Row) -> bool:
        """May a thread, whose fence has this column, write to these cells whatever else is known of them?

        True if nobody else has written there, no thread has read, and it knows the one unit that has to be done.
        False says nothing. The quick answer to most writes, cell by cell: they are few.
        """
        if self._read_by_threads:
            return False
        for cell in range(where.start, where.stop):
            if self.tag.item(cell) and (self.writer.item(cell) != thread or self.column.item(cell) != column):
                return False
            unit = self.unit.item(cell)
            if unit != _NOWHERE and (self.by_several.item(cell) or self.unit_tag.item(cell) > row.item(unit)):
                return False
        return True

    def there(self, where: slice, row: Row) -> bool:
        """Does a thread know of all that was written to these cells? The quick answer, as :meth:`own` gives it."""
        for cell in range(where.start, where.stop):
            if self.flying.item(cell) or self.tag.item(cell) > row.item(self.column.item(cell)):
                return False
            if self.wrote.item(cell) > row.item(self.writer.item(cell)):
                return False
        return True

    def fill(self, where: slice, column: int, tag: int, line: int, cells: Any) -> None:
        """A copy is under way to ``where``; it puts the box's elements, by row and column, at ``cells``."""
        self.column[where], self.tag[where], self.line[where] = column, tag, line
        self.wrote[where] = 0
        self.row[cells], self.place[cells] = np.ogrid[: cells.shape[0], : cells.shape[1]]
        self.flying[where] = self._filled = True
        self.read[:, where] = 0

    # --- reads ---

    def misread(self, where: Any, across: bool) -> tuple[int, int, int] | None:
        """Where an operand does not walk through the boxes that were copied here as they lie.

        ``where`` are cells by row and k. Returns a row of the operand with the rows, columns if it lies ``across``,
        of the box that it and the row before it come from.
        """
        along, other = (self.place, self.row) if across else (self.row, self.place)
        rows, ks = along[where], other[where]
        if (rows == _NOWHERE).any():
            return None
        first, k = rows[:, 0], ks[:, 0]
        apart = (rows != first[:, None]).any(1) | (np.diff(ks, axis=1) != 1).any(1)
        wrong = apart[1:] | (k[1:] != k[:-1]) | ((first[1:] != first[:-1] + 1) & (first[1:] != 0))
        wrong[0] |= apart[0]
        if not wrong.any():
            return None
        at = int(np.argmax(wrong))
        return at + 1, int(first[at]), int(first[at + 1])

    def note_unit(self, where: Any, column: int, tag: int, line: int) -> None:
        """A unit reads these cells from now until those who wait for it know ``tag`` in its column."""
        tags = self.units.get(column)
        if tags is None:
            tags = self.units[column] = np.zeros(len(self.tag), np.int32)
        tags[where] = tag
        before = self.unit[where]
        self.by_several[where] |= (before != column) & (before != _NOWHERE)
        self.unit[where], self.unit_tag[where] = column, tag
        self.unit_lines[column, tag] = line
        self._latest[column] = max(tag, self._latest.get(column, 0))

    def note_read(self, where: slice, thread: int, row: Row, line: int) -> None:
        """A thread reads. Of two readers before it, one that it knows of makes room."""
        self._read_by_threads = True
        for cell in range(where.start, where.stop):
            if self.read.item(0, cell) > row.item(self.reader.item(0, cell)):
                for part in (self.reader, self.read, self.read_line):
                    part[1, where] = part[0, where]
                break
        self.reader[0, where], self.read[0, where], self.read_line[0, where] = thread, row[thread], line

    def not_copied(self, where: slice, row: Row) -> Seen | None:
        """A copy to these cells that the row's thread has not waited for."""
        if not self._filled:
            return None
        columns = self.column[where]
        late = self.tag[where] > row[columns]
        return self._seen(where, self.flying[where] | (self.clocks.of_barrier[columns] & late), late)
