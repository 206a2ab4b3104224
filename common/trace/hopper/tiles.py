"""Shared memory of an asynchronous kernel: of each element who wrote it and who read it, as far as each warp knows.

Unlike in :class:`common.trace.shared.Shared`, an access is looked at when it is made, by the clocks of the warps.
*Clocks* are a vector clock per lane. Columns hold, for each warp, the interval of its own accesses; then its
warpgroup's groups of wgmma; then, as they come up, the groups of bulk stores of a lane, which it alone can wait for,
and the phases that a barrier in shared memory has completed. What a warp did is known to another one only by way of a
barrier that the first arrives at and the other waits for; what one lane has waited for, its warp knows by the next
syncwarp.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from common.trace.cost import WARP, Bools, Ints, count_nonzero
from common.trace.memory import poison
from common.trace.races import Access, no_barrier, picked_stamps, same
from common.trace.shared import Shared
from common.trace.state import State
from common.trace.values import spread
from common.trace.views import View

WARPGROUP = 4 * WARP
ACCESS, WGMMA, STORE = 0, 1, 2  # who reads: each warp has a column for the first, then one for the second
ROW = 128  # bytes of a row of a tile with the widest swizzle; bytes that shared memory delivers at a time
UNIT = 16  # bytes that stay together as rows are swizzled
_NEVER = np.iinfo(np.int64).max  # an interval that nobody will know of
_MORE = 32  # columns by which clocks grow
_NOWHERE = -1  # of what no copy brought
_READERS = {
    ACCESS: "read by thread {other}", WGMMA: "read by wgmma of warpgroup {group}",
    STORE: "read by a bulk store by thread {other}",
}  # fmt: skip
# What is told of an access: of the thread that makes it, and of the other that wrote or read the element.
_NOT_FENCED = (
    "{element} is {verb}, and thread {other}, which wrote it in line {line}, calls no fence_async with a barrier "
    "behind it in between"
)
_EARLY = "{element} is {verb} while the copy of line {line} to it is under way: wait for {awaited} first"
_UNSET = "{element}, which nothing has written, is {verb}"
_NOT_AWAITED = (
    "{element} is {verb} by thread {thread}, which has not waited for {awaited}: the copy of line {line} may not "
    "have arrived"
)
_MET = "{element} is {verb} by thread {thread} in line {own} and %s in line {line}{apart}"


class Clocks:
    """``known[lane, column]``: up to which number of the column all is done, as far as the lane knows."""

    def __init__(self, warps: int) -> None:
        self.warps, self.columns = warps, 2 * warps
        self.stores: list[int] = []  # columns of lanes' bulk stores
        self.now: Ints = np.zeros(warps, np.int64)  # the interval that a warp is in, which no other one knows of
        self.alone: Bools = np.zeros(warps * WARP, np.bool_)  # lanes with accesses since their warp's last syncwarp
        self.known: Ints = np.zeros((warps * WARP, self.columns), np.int64)
        self._begin(np.arange(warps))

    @property
    def _by_warp(self) -> Ints:
        return self.known.reshape(self.warps, WARP, -1)

    def _begin(self, warps: Any) -> None:
        self.now[warps] += 1
        self._by_warp[warps, :, warps] = self.now[warps, None]
        self.alone.reshape(self.warps, WARP)[warps] = False

    def column(self) -> int:
        if self.columns == self.known.shape[1]:
            self.known = np.pad(self.known, ((0, 0), (0, _MORE)))
        self.columns += 1
        return self.columns - 1

    def phases(self, lane: int) -> Ints:
        """The complete phases of barriers that a lane knows of: what it begins comes after them, wherever it ends."""
        found: Ints = self.known[lane].copy()
        found[: 2 * self.warps], found[self.stores] = 0, 0
        return found

    def pass_on(self, warps: Any) -> None:
        """The lanes of each of these warps have met: what one knows all know."""
        self._by_warp[warps] = self._by_warp[warps].max(axis=1, keepdims=True)
        self._begin(warps)

    def release(self, lanes: list[int]) -> Ints:
        """What lanes of one warp, in their order, hand over: not what others of it did since the last syncwarp."""
        warp, given = lanes[0] // WARP, np.asarray(self.known[lanes].max(axis=0))
        own = slice(warp * WARP, (warp + 1) * WARP)
        if count_nonzero(self.alone[own]) > count_nonzero(self.alone[lanes]):
            given[warp] -= 1
        else:
            self.now[warp] += 1
            self.known[own, warp], self.alone[own] = self.now[warp], False
        return given

    def acquire(self, lanes: list[int], given: Ints) -> None:
        """These lanes, in their order, come to know what others handed over."""
        self.known[lanes, : len(given)] = np.maximum(self.known[lanes, : len(given)], given)

    def meet(self, warps: Ints) -> None:
        self.pass_on(warps)
        given = self._by_warp[warps].max(axis=(0, 1))
        given[warps] -= 1  # the intervals that have begun are their own
        self._by_warp[warps] = np.maximum(self._by_warp[warps], given)


def joined(first: Ints, second: Ints) -> Ints:
    """What is known by either; a column that one of them does not have yet is the other's."""
    if len(first) < len(second):
        first, second = second, first
    found: Ints = first.copy()
    found[: len(second)] = np.maximum(found[: len(second)], second)
    return found


# --- shared memory ---


def swizzled(address: Any, span: int = ROW) -> Any:
    """Where the swizzle of so many bytes puts the byte of this address."""
    return address ^ ((address >> 7) & (span // UNIT - 1)) << 4


def _known(access: Access, column: Any) -> Any:
    return access.state.engines.clocks.known[access.lanes, column] if access.row is None else access.row[column]


# what is at fault that nobody has waited for: its kind, the functions that commit and wait, who has ended, the cause
_LEFT = {
    WGMMA: ("wgmma-order", "wgmma_commit", "wgmma_wait", "threads end", "no wait for wgmma"),
    STORE: ("copy-not-awaited", "tma_commit", "tma_wait_read", "thread ends", ""),
}


class Groups:
    """What some lanes, a warpgroup or one, have begun and not waited for, the oldest first: products (WGMMA) or bulk
    stores (STORE). Of each the number of its group, its name, array and line, and what carries it out."""

    def __init__(self, kind: int, lanes: slice, clocks: Clocks) -> None:
        self.kind, self.lanes, self.committed, self.clocks = kind, lanes, 0, clocks
        self.column = clocks.warps + lanes.start // WARP if kind == WGMMA else clocks.column()
        clocks.stores += [self.column] * (kind == STORE)
        self.under_way: list[tuple[int, str, str, int, Callable[[], None]]] = []

    def begin(self, what: str, array: str, line: int, work: Callable[[], None]) -> None:
        self.under_way.append((self.committed + 1, what, array, line, work))

    def finish(self, pending: int) -> None:
        """Carry out all but the last ``pending`` groups: the lanes know of it."""
        done = self.committed - pending
        while self.under_way and self.under_way[0][0] <= done:
            self.under_way.pop(0)[-1]()
        known = self.clocks.known[self.lanes, self.column]
        np.maximum(known, done, out=known)

    def end(self, state: State) -> None:
        """The lanes have ended: what is under way is at fault."""
        kind, commit, wait, ended, cause = _LEFT[self.kind]
        for number, what, array, line, _ in self.under_way:
            missing = wait if number <= self.committed else f"{commit} and no {wait}"
            text = f"{what} is still under way when its {ended}: no {missing} comes after it"
            state.fault(kind, line, array, text, lane=self.lanes.start, cause=cause)


class Tiles(Shared):
    def __init__(self, state: State, size: int, dtype: Any, alignment: int) -> None:
        super().__init__(state, size, dtype, alignment)
        count = len(self.data)
        # Who wrote an element last: the column of the clocks whose number says that it is done; the writer, its line
        # and stamp; the interval in which it called fence_async, and its stamp then.
        self.column, self.number, self.lane, self.line, self.fenced, self.fence_stamp = np.zeros((6, count), np.int64)
        self.stamp = np.full(count, -1, np.int64)
        self.rows = np.full(count, _NOWHERE, np.int32)  # of the box that was copied: where an element lay in it
        self.columns = np.zeros(count, np.int32)
        # by kind and first lane in a block, what a warp, or the engines set to work from there, read last: the column
        # whose number says that it is done, number, line
        self.readers: defaultdict[tuple[int, int], Ints] = defaultdict(lambda: np.zeros((3, count), np.int64))
        self.under_way: Bools = np.zeros(count, np.bool_)
        self.pending = self.under_way

    def keep(self, access: Access) -> None:
        if access.op == "atomic":
            return  # these are not looked at here
        clocks, who, shape = access.state.engines.clocks, access.lanes.nonzero()[0], access.lanes.shape
        clocks.alone |= access.lanes
        numbers, places = clocks.now[who // WARP], spread(access.at, shape)[who]
        own = access._replace(op="read" if access.op == "read" else "written", at=places, lanes=who)
        if access.op == "read":
            self._written_before(own)
            self._note(own, ACCESS, who // WARP, numbers)
            return
        values = spread(np.asarray(access.value, self.dtype), shape)[who]
        changed = ~same(self.data[places], values)
        changing = own._replace(at=places[changed], lanes=who[changed])
        self._written_before(changing)
        self._read_before(changing)
        self._put(own, who // WARP, numbers)
        self.stamp[places] = picked_stamps(access.stamps, who)
        self.fenced[places], self.rows[places] = _NEVER, _NOWHERE
        beaten = self.lane[places] != who
        if count_nonzero(beaten):
            beaten &= ~same(values[np.searchsorted(who, self.lane[places])], values)
            self._tell("race", own, beaten, _MET % "written at once by thread {other}")

    def settle(self, state: State, view: View, present: Bools | None) -> None:
        self.complete = self.complete or bool(self.written.all())

    def fence(self, state: State, lanes: Bools) -> None:
        """The active lanes call fence_async: what they wrote is there for the engines, once others know of it."""
        waiting = (self.fenced == _NEVER).nonzero()[0]
        own = waiting[lanes[self.lane[waiting]] & ~self.under_way[waiting]]
        self.fenced[own] = state.engines.clocks.now[self.lane[own] // WARP]
        self.fence_stamp[own] = picked_stamps(state.stamps, self.lane[own])

    def read_by_engine(self, access: Access, groups: Groups) -> None:
        """wgmma or a bulk store reads: one of the group that is committed next."""
        early = self.under_way[access.at]
        self._tell("copy-not-awaited", access, early, _EARLY)
        self._tell("read-before-write", access, ~self.written[access.at] & ~early, _UNSET)
        by_threads = self.fenced[access.at] != 0
        self._written_before(access._replace(at=access.at[~by_threads]))
        self._note(access, groups.kind, groups.column, groups.committed + 1)
        # a thread must have called fence_async since it wrote, as who reads must know, and its warp, if that is one's
        access = access._replace(at=access.at[by_threads])
        unfenced = self.fenced[access.at] > _known(access, self.column[access.at])
        self._tell("proxy-fence", access, unfenced | self._unsynced(access, self.fence_stamp), _NOT_FENCED)

    def filled_by_engine(self, access: Access, width: int, column: int, number: int) -> None:
        """A copy to rows of a box of this width begins; it is done when that column has come to ``number``."""
        places, under_way = access.at, self.under_way[access.at]
        self._tell("race", access, under_way, _EARLY)
        self.rows[places], self.columns[places] = np.divmod(np.arange(len(places)), width)
        places = places[~under_way]
        access = access._replace(at=places)
        self._written_before(access)
        self._read_before(access)
        self._put(access, column, number)
        self.fenced[places] = 0
        self.under_way[places] = True
        self.written[places] = False
        self.complete = False
        self.data[places] = poison(np.empty(1, self.dtype))[0]

    def misread(self, places: Ints, along_n: bool) -> str:
        """How an operand, by row and k, does not walk through copied boxes as they lie, or nothing. ``along_n``: its
        rows are their columns."""
        row, k = self.rows[places], self.columns[places]
        nowhere = (row == _NOWHERE).any()
        row, k = (k, row) if along_n else (row, k)
        first = row[:, 0]
        wrong = ((row != first[:, None]) | (k != k[0, 0] + np.arange(k.shape[1]))).any(axis=1)
        wrong[1:] |= (first[1:] != first[:-1] + 1) & (first[1:] != 0)
        if nowhere or not count_nonzero(wrong):
            return ""
        at, what = max(int(np.argmax(wrong)) - 1, 0), "columns" if along_n else "rows"
        read, copied = f"{what} {at} and {at + 1}", f"{what} {first[at]} and {first[at + 1]} of a box"
        return f"reads as {read} what was copied as {copied}, or its k do not follow each other"

    def arrive(self, places: Ints, values: Any) -> None:
        self.under_way[places] = False
        self.data[places] = values
        self.written[places] = True

    def _tell(self, kind: str, access: Access, met: Bools, words: str, by: Any = None) -> None:
        """A fault where accesses ``met`` what was written last, or done ``by`` lanes in lines."""
        if not count_nonzero(met):
            return
        state, view, n = access.state, access.view, int(np.argmax(met))
        place, lane = int(access.at[n]), int(np.broadcast_to(access.lanes, met.shape)[n])
        other, line = (int(one[n]) for one in by or (self.lane[access.at], self.line[access.at]))
        barrier = state.engines.by_column.get(int(self.column[place]))
        text = words.format(
            element=view.element(place % self.size), verb=access.op, thread=state.thread_of(lane), own=access.line,
            other=state.thread_of(other), group=other % state.lanes_per_block // WARPGROUP, line=line,
            awaited=barrier.name if barrier else "it", apart=no_barrier(state.home, access.line, line),
        )  # fmt: skip
        state.fault(kind, access.line, view.name, text, met, lane=lane)

    def _put(self, access: Access, column: Any, number: Any) -> None:
        self.column[access.at], self.number[access.at] = column, number
        self.lane[access.at], self.line[access.at] = access.lanes, access.line

    def _note(self, access: Access, kind: int, column: Any, number: Any) -> None:
        """Threads read, or the engines that the first of these has set to work."""
        together = 1 if kind == STORE else WARP
        leads = access.lanes % access.state.lanes_per_block // together * together
        columns, numbers, of_block = (np.broadcast_to(value, access.at.shape) for value in (column, number, leads))
        for lead in np.unique(leads).tolist():
            own = of_block == lead if np.ndim(leads) else slice(None)
            column_of, number_of, line_of = self.readers[kind, lead]
            places = access.at[own]
            column_of[places], number_of[places], line_of[places] = columns[own], numbers[own], access.line

    def _unsynced(self, access: Access, stamps: Ints) -> Any:
        """Where another thread of the warp wrote, which has called no syncwarp since it had these stamps."""
        if access.row is not None:
            return False
        others = (self.column[access.at] == access.lanes // WARP) & (self.lane[access.at] != access.lanes)
        return others & (stamps[access.at] == picked_stamps(access.stamps, access.lanes))

    def _written_before(self, access: Access) -> None:
        """A fault where it is not known that what was written last is done."""
        number = self.number[access.at]
        if not count_nonzero(number):
            return
        column = self.column[access.at]
        met = (number > _known(access, column)) | self._unsynced(access, self.stamp)
        if not count_nonzero(met):
            return
        by_threads = column < access.state.engines.clocks.warps
        awaited = met & ~by_threads & ~self.under_way[access.at]
        if count_nonzero(awaited) and access.op != "written":
            self._tell("copy-not-awaited", access, awaited, _NOT_AWAITED)
            met &= by_threads
        self._tell("race", access, met, _MET % "written by thread {other}")

    def _read_before(self, access: Access) -> None:
        """A fault where it is not known that reads of what is overwritten are done."""
        places, state = access.at, access.state
        numbers = np.array([number_of[places] for _, number_of, _ in self.readers.values()])
        if not count_nonzero(numbers):
            return
        late = numbers > _known(access, np.array([column_of[places] for column_of, *_ in self.readers.values()]))
        for ((kind, lead), (*_, line_of)), met in zip(self.readers.items(), late, strict=True):
            by = places // self.size * state.lanes_per_block + lead, line_of[places]
            self._tell("race", access, met, _MET % _READERS[kind], by)
