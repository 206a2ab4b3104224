"""Shared memory of an asynchronous kernel: of each element who wrote it and who read it, as far as each warp knows.

Unlike in :class:`common.trace.shared.Shared`, an access is looked at when it is made, by the clocks of the warps.
*Clocks* are a vector clock per lane. Columns hold, for each warp, the interval of its own accesses; then its
warpgroup's groups of wgmma; then its groups of bulk stores; then, for each barrier in shared memory, the phases it
has completed. What a warp did is known to another one only by way of a barrier that the first arrives at and the
other waits for; what one lane has waited for, its warp knows by the next syncwarp.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from common.trace.cost import WARP, Bools, Ints
from common.trace.memory import poisoned
from common.trace.races import Access, no_barrier, picked_stamps, same
from common.trace.shared import Shared
from common.trace.state import State
from common.trace.values import spread
from common.trace.views import View

WARPGROUP = 4 * WARP
ACCESS, WGMMA, STORE = 0, 1, 2  # kinds of columns that a warp has, in this order
_KINDS = 3
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
        self.warps, self.columns = warps, _KINDS * warps
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
        found[: _KINDS * self.warps] = 0
        return found

    def pass_on(self, warps: Any) -> None:
        """The lanes of each of these warps have met: what one knows all know."""
        self._by_warp[warps] = self._by_warp[warps].max(axis=1, keepdims=True)
        self._begin(warps)

    def release(self, lanes: list[int]) -> Ints:
        """What lanes of one warp, in their order, hand over: not what others of it did since the last syncwarp."""
        warp, given = lanes[0] // WARP, np.asarray(self.known[lanes].max(axis=0))
        own = slice(warp * WARP, (warp + 1) * WARP)
        if np.count_nonzero(self.alone[own]) > np.count_nonzero(self.alone[lanes]):
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


class Agent(NamedTuple):
    """Who accesses an array: a lane, or one for each element; or the warpgroup that begins with it, if there is a
    ``row``: what all of its lanes know."""

    state: State
    view: View
    lane: Any
    line: int
    verb: str
    row: Any = None

    def known(self, column: Any) -> Any:
        return self.state.engines.clocks.known[self.lane, column] if self.row is None else self.row[column]


# what is at fault that nobody has waited for: its kind, the functions that commit and wait, who has ended, the cause
_LEFT = {
    WGMMA: ("wgmma-order", "wgmma_commit", "wgmma_wait", "threads end", "no wait for wgmma"),
    STORE: ("copy-not-awaited", "tma_commit", "tma_wait_read", "thread ends", ""),
}


class Groups:
    """What some lanes, a warpgroup or one, have begun and not waited for, the oldest first: products (WGMMA) or bulk
    stores (STORE). Of each the number of its group, its name, array and line, and what carries it out."""

    def __init__(self, kind: int, lanes: slice) -> None:
        self.kind, self.lanes, self.committed = kind, lanes, 0
        self.under_way: list[tuple[int, str, str, int, Callable[[], None]]] = []

    def begin(self, what: str, array: str, line: int, work: Callable[[], None]) -> None:
        self.under_way.append((self.committed + 1, what, array, line, work))

    def finish(self, clocks: Clocks, pending: int) -> None:
        """Carry out all but the last ``pending`` groups: the lanes know of it."""
        done = self.committed - pending
        while self.under_way and self.under_way[0][0] <= done:
            self.under_way.pop(0)[-1]()
        known = clocks.known[self.lanes, self.kind * clocks.warps + self.lanes.start // WARP]
        np.maximum(known, done, out=known)

    def end(self, state: State) -> None:
        """The lanes have ended: what is under way is at fault."""
        kind, commit, wait, ended, cause = _LEFT[self.kind]
        for number, what, array, line, _ in self.under_way:
            missing = wait if number <= self.committed else f"{commit} and no {wait}"
            text = f"{what} is still under way when its {ended}: no {missing} comes after it"
            state.fault_of(self.lanes.start, kind, line, array, text, cause)


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
        # by kind and warp of a block, what its threads, or the engines it has set to work, read last: number, line
        self.readers: defaultdict[tuple[int, int], Ints] = defaultdict(lambda: np.zeros((2, count), np.int64))
        self.under_way: Bools = np.zeros(count, np.bool_)
        self.pending = self.under_way

    def keep(self, access: Access) -> None:
        op, state, view, at, lanes, line, _, value, *_ = access
        if op == "atomic":
            return  # these are not looked at here
        clocks, who = state.engines.clocks, np.flatnonzero(lanes)
        clocks.alone |= lanes
        places = spread(at, lanes.shape)[who]
        agent = Agent(state, view, who, line, "read" if op == "read" else "written")
        if op == "read":
            self._written_before(agent, places)
            self._note(agent, places, ACCESS, clocks.now[who // WARP])
            return
        values = spread(np.asarray(value, self.dtype), lanes.shape)[who]
        changed = ~same(self.data[places], values)
        changing = agent._replace(lane=who[changed])
        self._written_before(changing, places[changed])
        self._read_before(changing, places[changed])
        self._put(places, who // WARP, clocks.now[who // WARP], who, line)
        self.stamp[places] = picked_stamps(state.stamps, who)
        self.fenced[places], self.rows[places] = _NEVER, _NOWHERE
        beaten = self.lane[places] != who
        if beaten.any():
            beaten &= ~same(values[np.searchsorted(who, self.lane[places])], values)
            self._tell("race", agent, places, beaten, _MET % "written at once by thread {other}")

    def settle(self, state: State, view: View, present: Bools | None) -> None:
        self.complete = self.complete or bool(self.written.all())

    def fence(self, state: State, lanes: Bools) -> None:
        """The active lanes call fence_async: what they wrote is there for the engines, once others know of it."""
        waiting = np.flatnonzero(self.fenced == _NEVER)
        own = waiting[lanes[self.lane[waiting]] & ~self.under_way[waiting]]
        self.fenced[own] = state.engines.clocks.now[self.lane[own] // WARP]
        self.fence_stamp[own] = picked_stamps(state.stamps, self.lane[own])

    def read_by_engine(self, agent: Agent, places: Ints, kind: int, number: int) -> None:
        """wgmma (kind WGMMA) or a bulk store (STORE) reads; it is done when that column has come to ``number``."""
        early = self.under_way[places]
        self._tell("copy-not-awaited", agent, places, early, _EARLY)
        self._tell("read-before-write", agent, places, ~self.written[places] & ~early, _UNSET)
        by_threads = self.fenced[places] != 0
        self._written_before(agent, places[~by_threads])
        self._note(agent, places, kind, number)
        # a thread must have called fence_async since it wrote, as the agent must know
        places = places[by_threads]
        unfenced = self.fenced[places] > agent.known(self.column[places])
        if agent.row is None:  # one lane's, of a warp whose others have fenced, with no syncwarp since
            others = (self.column[places] == agent.lane // WARP) & (self.lane[places] != agent.lane)
            unfenced |= others & (self.fence_stamp[places] == picked_stamps(agent.state.stamps, agent.lane))
        self._tell("proxy-fence", agent, places, unfenced, _NOT_FENCED)

    def filled_by_engine(self, agent: Agent, places: Ints, width: int, column: int, number: int) -> None:
        """A copy to rows of a box of this width begins; it is done when that column has come to ``number``."""
        under_way = self.under_way[places]
        self._tell("race", agent, places, under_way, _EARLY)
        self.rows[places], self.columns[places] = np.divmod(np.arange(len(places)), width)
        places = places[~under_way]
        self._written_before(agent, places)
        self._read_before(agent, places)
        self._put(places, column, number, agent.lane, agent.line)
        self.fenced[places] = 0
        self.under_way[places] = True
        self.written[places] = False
        self.complete = False
        self.data[places] = poisoned(1, self.dtype)[0]

    def misread(self, places: Ints, along_n: bool) -> str:
        """How an operand, by row and k, does not walk through copied boxes as they lie, or nothing. ``along_n``: its
        rows are their columns."""
        row, k = self.rows[places], self.columns[places]
        nowhere = (row == _NOWHERE).any()
        row, k = (k, row) if along_n else (row, k)
        first = row[:, 0]
        wrong = ((row != first[:, None]) | (k != k[0, 0] + np.arange(k.shape[1]))).any(axis=1)
        wrong[1:] |= (first[1:] != first[:-1] + 1) & (first[1:] != 0)
        if nowhere or not wrong.any():
            return ""
        at, what = max(int(np.argmax(wrong)) - 1, 0), "columns" if along_n else "rows"
        read, copied = f"{what} {at} and {at + 1}", f"{what} {first[at]} and {first[at + 1]} of a box"
        return f"reads as {read} what was copied as {copied}, or its k do not follow each other"

    def arrive(self, places: Ints, values: Any) -> None:
        self.under_way[places] = False
        self.data[places] = values
        self.written[places] = True

    def _tell(self, kind: str, agent: Agent, places: Ints, met: Bools, words: str, by: Any = None) -> None:
        """A fault where accesses of the agent ``met`` what was written last, or done ``by`` lanes in lines."""
        if not met.any():
            return
        state, view, n = agent.state, agent.view, int(np.argmax(met))
        place, lane = int(places[n]), int(np.broadcast_to(agent.lane, met.shape)[n])
        other, line = (int(one[n]) for one in by or (self.lane[places], self.line[places]))
        barrier = state.engines.by_column.get(int(self.column[place]))
        text = words.format(
            element=view.element(place % self.size), verb=agent.verb, thread=state.thread_of(lane), own=agent.line,
            other=state.thread_of(other), group=other % state.lanes_per_block // WARPGROUP, line=line,
            awaited=barrier.name if barrier else "it", apart=no_barrier(state.home, agent.line, line),
        )  # fmt: skip
        state.fault(kind, agent.line, view.name, text, met, lane=lane)

    def _put(self, places: Ints, column: Any, number: Any, lane: Any, line: int) -> None:
        self.column[places], self.number[places] = column, number
        self.lane[places], self.line[places] = lane, line

    def _note(self, agent: Agent, places: Ints, kind: int, number: Any) -> None:
        """The agent's threads read, or the engines that its first warp has set to work."""
        warps = agent.lane // WARP % (agent.state.lanes_per_block // WARP)  # of their block
        numbers, of_block = (np.broadcast_to(value, places.shape) for value in (number, warps))
        for warp in np.unique(warps).tolist():
            own = of_block == warp if np.ndim(warps) else slice(None)
            number_of, line_of = self.readers[kind, warp]
            number_of[places[own]], line_of[places[own]] = numbers[own], agent.line

    def _written_before(self, agent: Agent, places: Ints) -> None:
        """A fault where the agent does not know that what was written last is done."""
        number = self.number[places]
        if not number.any():
            return
        column = self.column[places]
        met = number > agent.known(column)
        if agent.row is None:  # threads of one warp, with no syncwarp between
            unsynced = (column == agent.lane // WARP) & (self.lane[places] != agent.lane)
            met |= unsynced & (self.stamp[places] == picked_stamps(agent.state.stamps, agent.lane))
        if not met.any():
            return
        by_threads = column < agent.state.engines.clocks.warps
        awaited = met & ~by_threads & ~self.under_way[places]
        if awaited.any() and agent.verb != "written":
            self._tell("copy-not-awaited", agent, places, awaited, _NOT_AWAITED)
            met &= by_threads
        self._tell("race", agent, places, met, _MET % "written by thread {other}")

    def _read_before(self, agent: Agent, places: Ints) -> None:
        """A fault where the agent does not know that reads of what it overwrites are done."""
        numbers = np.array([number_of[places] for number_of, _ in self.readers.values()])
        if not numbers.any():
            return
        first_warp = places // self.size * (agent.state.lanes_per_block // WARP)
        warps = agent.state.engines.clocks.warps
        first_column = np.array([kind * warps + warp for kind, warp in self.readers])
        late = numbers > agent.known(first_column[:, None] + first_warp)
        for ((kind, warp), (_, line_of)), met in zip(self.readers.items(), late, strict=True):
            by = (first_warp + warp) * WARP, line_of[places]
            self._tell("race", agent, places, met, _MET % _READERS[kind], by)
