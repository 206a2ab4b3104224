"""Shared memory of an asynchronous kernel: of each element who wrote it and who read it, as far as each warp knows.

Other kernels order their threads by barriers of the block alone, and :class:`common.trace.shared.Shared` looks
at all accesses when they come to one. Here an access is looked at when it is made, by the clocks of the warps
(:mod:`common.trace.hopper.warps`): what wgmma and the copy engine do, too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from common.trace.cost import WARP, Bools, Ints
from common.trace.hopper.warps import ACCESS, STORE, WARPGROUP, WGMMA, Clocks
from common.trace.memory import poisoned
from common.trace.races import no_barrier, same
from common.trace.shared import Shared
from common.trace.state import State
from common.trace.values import spread
from common.trace.views import View

_NEVER = np.iinfo(np.int64).max  # an interval that nobody will know of
_BITS = 1 << np.arange(WARP)
_NOWHERE = -1  # of what no copy brought
_READERS = {ACCESS: "read", WGMMA: "read by wgmma", STORE: "read by a bulk store"}


class Reader(NamedTuple):
    """What the threads of a warp, or the engines that it has set to work, read last: by element."""

    number: Ints
    line: Ints


class Agent(NamedTuple):
    """Who accesses memory: on behalf of which warps, by which lane, in which line; ``verb`` says so."""

    warps: Any  # one warp, those of a warpgroup, or one for each element
    lane: Any
    line: int
    verb: str


class Groups:
    """What one agent has begun and not waited for, the oldest first, each with its group's number."""

    def __init__(self) -> None:
        self.committed = 0
        self.under_way: list[tuple[int, Any]] = []

    def begin(self, work: Any) -> None:
        self.under_way.append((self.committed + 1, work))

    def finish(self, state: State, pending: int) -> int:
        """Carry out all but the last ``pending`` groups; the number of the last that is done."""
        done = self.committed - pending
        while self.under_way and self.under_way[0][0] <= done:
            self.under_way.pop(0)[1].carry_out(state)
        return done


def _stamps(state: State, lanes: Any) -> Any:
    """The barriers that each of these lanes has passed."""
    return state.stamps if np.ndim(state.stamps) == 0 else state.stamps[lanes]


class Tiles(Shared):
    """An array in shared memory, one per block."""

    def __init__(self, state: State, size: int, dtype: Any, alignment: int) -> None:
        super().__init__(state, size, dtype, alignment)
        count = len(self.data)
        self.column = np.full(count, -1, np.int64)  # of the clocks: who wrote an element last
        self.number = np.zeros(count, np.int64)  # and which number of that column says that it is done
        self.lane = np.zeros(count, np.int64)
        self.line = np.zeros(count, np.int64)
        self.stamp = np.zeros(count, np.int64)
        self.fenced = np.zeros(count, np.int64)  # the interval in which the writer called fence_async
        self.fence_stamp = np.zeros(count, np.int64)
        self.rows = np.full(count, _NOWHERE, np.int32)  # of the box that was copied: where an element lay in it
        self.columns = np.zeros(count, np.int32)
        self.readers: dict[tuple[int, int], Reader] = {}  # by kind, and by warp of a block
        self.under_way: Bools = np.zeros(count, np.bool_)
        self.pending = self.under_way

    def flat(self, block: int, places: Ints) -> Ints:
        """Elements of a block's array, as elements of all."""
        return places + block * self.size

    # --- ordinary accesses, of all active lanes ---

    def noted_read(self, state: State, view: View, at: Any, lanes: Bools, line: int) -> None:
        who, places = self._alone(state, at, lanes)
        agent = Agent(who // WARP, who, line, "read")
        self._written_before(state, view, places, agent)
        self._note(state, places, ACCESS, who // WARP, state.engines.clocks.known[agent.warps, agent.warps],
                   line)  # fmt: skip

    def _alone(self, state: State, at: Any, lanes: Bools) -> tuple[Ints, Ints]:
        """Lanes access the tiles, and have not met the others of their warp since; their numbers, and where."""
        state.engines.clocks.alone |= lanes.reshape(-1, WARP) @ _BITS
        who = np.flatnonzero(lanes)
        return who, spread(at, lanes.shape)[who]

    def noted_write(self, state: State, view: View, at: Any, lanes: Bools, value: Any, line: int) -> None:
        who, places = self._alone(state, at, lanes)
        warps = who // WARP
        values = spread(np.asarray(value, self.dtype), lanes.shape)[who]
        changed = ~same(self.data[places], values)
        agent = Agent(warps, who, line, "written")
        self._written_before(state, view, places, agent, changed)
        self._read_before(state, view, places, agent, changed)
        interval = state.engines.clocks.known[warps, warps]
        self._put(places, warps, interval, who, line)
        self.stamp[places] = _stamps(state, who)
        self.fenced[places], self.rows[places] = _NEVER, _NOWHERE
        beaten = self.lane[places] != who
        if beaten.any():
            beaten &= ~same(values[np.searchsorted(who, self.lane[places])], values)
            self._tell_race(state, view, places, beaten, agent, self.lane[places], self.line[places],
                            "written at once")  # fmt: skip

    def still_under_way(self, at: Any, lanes: Bools, value: Any, line: int, stamps: Any) -> None:
        """Nothing: whoever reads it before it has arrived is found by ``pending``."""

    def settle(self, state: State, view: View, present: Bools | None) -> None:
        self.complete = self.complete or bool(self.written is not None and self.written.all())
        self.accesses.clear()

    def fence(self, state: State, lanes: Bools) -> None:
        """The active lanes call fence_async: what they wrote is there for the engines, once others know of it."""
        waiting = np.flatnonzero(self.fenced == _NEVER)
        own = waiting[lanes[self.lane[waiting]] & ~self.under_way[waiting]]
        warps = self.lane[own] // WARP
        self.fenced[own] = state.engines.clocks.known[warps, warps]
        self.fence_stamp[own] = _stamps(state, self.lane[own])

    # --- accesses of the engines ---

    def read_by_engine(self, state: State, view: View, places: Ints, agent: Agent, kind: int, number: int) -> None:
        """wgmma (kind WGMMA) or a bulk store (STORE) reads; it is done when that column has come to ``number``."""
        self._arrived(state, view, places, agent)
        fenced = self.fenced[places]
        by_threads = fenced != 0
        self._written_before(state, view, places if not by_threads.any() else places[~by_threads], agent)
        if by_threads.any():
            self._fenced_before(state, view, places[by_threads], agent)
        leader = int(np.min(agent.warps))
        self._note(state, places, kind, leader, number, agent.line)

    def _fenced_before(self, state: State, view: View, places: Ints, agent: Agent) -> None:
        """A fault where a thread wrote, and the agent does not know that it called fence_async since."""
        known = self._known(state.engines.clocks, agent, self.column[places])
        unfenced = self.fenced[places] > known
        if np.ndim(agent.warps) == 0:  # one lane's, of a warp whose others have fenced, with no syncwarp since
            others = (self.column[places] == agent.warps) & (self.lane[places] != agent.lane)
            unfenced |= others & (self.fence_stamp[places] == _stamps(state, agent.lane))
        if not unfenced.any():
            self._written_before(state, view, places, agent)
            return
        first = places[int(np.argmax(unfenced))]
        text = (
            f"{self.element(view, first)} is {agent.verb}, and thread {state.thread_of(int(self.lane[first]))}, "
            f"which wrote it in line {self.line[first]}, calls no fence_async with a barrier behind it in between"
        )
        state.fault("proxy-fence", agent.line, view.name, text, unfenced, lane=agent.lane)

    def filled_by_engine(
        self, state: State, view: View, places: Ints, agent: Agent, column: int, number: int
    ) -> None:
        """A copy to these elements begins; it is done when that column has come to ``number``."""
        under_way = self.under_way[places]
        if under_way.any():
            first = places[int(np.argmax(under_way))]
            text = (
                f"{self.element(view, first)} is {agent.verb} while the copy of line {self.line[first]} to it is "
                "still under way"
            )
            state.fault("race", agent.line, view.name, text, under_way, lane=agent.lane)
            places = places[~under_way]
        self._written_before(state, view, places, agent)
        self._read_before(state, view, places, agent)
        self._put(places, column, number, agent.lane, agent.line)
        self.fenced[places] = 0
        self.under_way[places] = True
        assert self.written is not None
        self.written[places] = False
        self.complete = False
        self.data[places] = poisoned(1, self.dtype)[0]

    def lay(self, places: Ints, rows: int, columns: int) -> None:
        """Remember of a box's elements, row by row, where in it they lay."""
        row, column = np.divmod(np.arange(rows * columns), columns)
        self.rows[places], self.columns[places] = row, column

    def misread(self, places: Ints, along_n: bool) -> str:
        """How an operand, elements by row and k, does not walk through copied boxes as they lie; or nothing.

        ``along_n``: its rows are columns of the boxes.
        """
        row, k = self.rows[places], self.columns[places]
        if (row == _NOWHERE).any():
            return ""
        if along_n:
            row, k = k, row
        first = row[:, 0]
        apart = (row != first[:, None]).any(axis=1) | (np.diff(k, axis=1) != 1).any(axis=1)
        wrong = (k[1:, 0] != k[:-1, 0]) | ((first[1:] != first[:-1] + 1) & (first[1:] != 0)) | apart[1:]
        wrong[0] |= apart[0]
        if not wrong.any():
            return ""
        at, what = int(np.argmax(wrong)), "columns" if along_n else "rows"
        return (
            f"reads as {what} {at} and {at + 1} what was copied as {what} {first[at]} and {first[at + 1]} of a box, "
            "or its k do not follow each other"
        )

    def arrive(self, places: Ints, values: Any) -> None:
        assert self.written is not None
        self.under_way[places] = False
        self.data[places] = values
        self.written[places] = True

    # --- what is compared ---

    def element(self, view: View, place: int) -> str:
        return view.element(int(place) % self.size)

    def _put(self, places: Ints, column: Any, number: Any, lane: Any, line: int) -> None:
        self.column[places], self.number[places] = column, number
        self.lane[places], self.line[places] = lane, line

    def _note(self, state: State, places: Ints, kind: int, warps: Any, number: Any, line: int) -> None:
        per_block = state.lanes_per_block // WARP
        numbers = np.broadcast_to(np.asarray(number), places.shape)
        of_block = np.broadcast_to(np.asarray(warps) % per_block, places.shape)
        for warp in np.unique(of_block).tolist() if np.ndim(warps) else [int(warps) % per_block]:
            reader = self.readers.get((kind, warp))
            if reader is None:
                reader = Reader(np.zeros(len(self.data), np.int64), np.zeros(len(self.data), np.int64))
                self.readers[kind, warp] = reader
            own = of_block == warp if np.ndim(warps) else slice(None)
            reader.number[places[own]] = numbers[own]
            reader.line[places[own]] = line

    def _arrived(self, state: State, view: View, places: Ints, agent: Agent) -> None:
        assert self.written is not None
        early = self.under_way[places]
        if early.any():
            first = places[int(np.argmax(early))]
            text = (
                f"{self.element(view, first)} is {agent.verb} while the copy of line {self.line[first]} to it is "
                f"under way: wait for {self._awaited(state, first)} first"
            )
            state.fault("copy-not-awaited", agent.line, view.name, text, early, lane=agent.lane)
        unset = ~self.written[places] & ~early
        if unset.any():
            first = places[int(np.argmax(unset))]
            text = f"{self.element(view, first)}, which nothing has written, is {agent.verb}"
            state.fault("read-before-write", agent.line, view.name, text, unset, lane=agent.lane)

    def _awaited(self, state: State, place: int) -> str:
        barrier = state.engines.by_column.get(int(self.column[place]))
        return barrier.name if barrier else "it"

    def _written_before(
        self, state: State, view: View, places: Ints, agent: Agent, among: Bools | None = None
    ) -> None:
        """A fault where the agent does not know that what was written last is done."""
        column = self.column[places]
        if not len(places) or column.max() < 0:
            return
        clocks = state.engines.clocks
        known = self._known(clocks, agent, column)
        met = (column >= 0) & (self.number[places] > known)
        lanes = self.lane[places]
        by_threads = column < clocks.warps
        if np.ndim(agent.warps) == np.ndim(agent.lane):  # threads of one warp, with no syncwarp between
            unsynced = (column == agent.warps) & (lanes != agent.lane)
            unsynced &= self.stamp[places] == _stamps(state, agent.lane)
            met |= unsynced
        if among is not None:
            met &= among
        if not met.any():
            return
        awaited = met & ~by_threads & ~self.under_way[places]
        if awaited.any() and agent.verb != "written":
            self._tell_unawaited(state, view, places, awaited, agent)
            met &= by_threads
        self._tell_race(state, view, places, met, agent, lanes, self.line[places], "written")

    @staticmethod
    def _known(clocks: Clocks, agent: Agent, column: Any) -> Ints:
        """The number of each column that the agent knows: all of its warps, if it has several."""
        if np.ndim(agent.lane):
            return clocks.rows(agent.lane, column)
        if np.ndim(agent.warps):
            found: Ints = clocks.known[agent.warps].min(axis=0)[column]
            return found
        picked: Ints = clocks.row(agent.lane)[column]
        return picked

    def _read_before(self, state: State, view: View, places: Ints, agent: Agent, among: Bools | None = None) -> None:
        """A fault where the agent does not know that reads of what it overwrites are done."""
        if not self.readers:
            return
        numbers = np.array([reader.number[places] for reader in self.readers.values()])
        if not numbers.any():
            return
        clocks = state.engines.clocks
        per_block = state.lanes_per_block // WARP
        first_warp = places // self.size * per_block
        first_column = np.array([clocks.of(kind, warp) for kind, warp in self.readers])
        late = numbers > self._known(clocks, agent, first_column[:, None] + first_warp)
        if among is not None:
            late &= among
        if not late.any():
            return
        for ((kind, warp), reader), met in zip(self.readers.items(), late, strict=True):
            if met.any():
                other = (first_warp + warp) * WARP
                self._tell_race(state, view, places, met, agent, other, reader.line[places], _READERS[kind])

    def _tell_unawaited(self, state: State, view: View, places: Ints, met: Bools, agent: Agent) -> None:
        first = int(np.argmax(met))
        lane = int(np.broadcast_to(agent.lane, met.shape)[first])
        text = (
            f"{self.element(view, places[first])} is {agent.verb} by thread {state.thread_of(lane)}, which has not "
            f"waited for {self._awaited(state, places[first])}: the copy of line {self.line[places[first]]} may "
            "not have arrived"
        )
        state.fault("copy-not-awaited", agent.line, view.name, text, met, lane=lane)

    def _tell_race(
        self, state: State, view: View, places: Ints, met: Bools, agent: Agent, others: Any, lines: Ints,
        verb: str,
    ) -> None:  # fmt: skip
        if not met.any():
            return
        first = int(np.argmax(met))
        lane = int(np.broadcast_to(agent.lane, met.shape)[first])
        other = int(np.broadcast_to(others, met.shape)[first])
        by = f" by thread {state.thread_of(other)}"
        if verb == _READERS[WGMMA]:
            by = f" of warpgroup {other % state.lanes_per_block // WARPGROUP}"
        text = (
            f"{self.element(view, places[first])} is {agent.verb} by thread {state.thread_of(lane)} in line "
            f"{agent.line} and {verb}{by} in line {lines[first]}"
            f"{no_barrier(state.home, agent.line, int(lines[first]))}"
        )
        state.fault("race", agent.line, view.name, text, met, lane=lane)
