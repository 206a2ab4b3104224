"""Shared memory of an asynchronous kernel: of each element who wrote it and who read it, as far as each warp knows.

Other kernels order their threads by barriers of the block alone, and :class:`common.trace.shared.Shared` looks
at all accesses when they come to one. Here an access is looked at when it is made, by the clocks of the warps: what
wgmma and the copy engine do, too.

*Clocks* are a vector clock per warp. Columns hold, for each warp, the interval of its own accesses; then its
warpgroup's groups of wgmma; then its groups of bulk stores; then, for each barrier in shared memory, the phases it
has completed. What a warp did is known to another one only by way of a barrier that the first arrives at and the
other waits for. Lanes that wait without the rest of their warp know alone what they have waited for, until the
warp's next syncwarp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from common.trace.cost import WARP, Bools, Ints
from common.trace.memory import poisoned
from common.trace.races import no_barrier, same
from common.trace.shared import Shared
from common.trace.state import State
from common.trace.values import spread
from common.trace.views import View

WARPGROUP = 4 * WARP
ACCESS, WGMMA, STORE = 0, 1, 2  # kinds of columns that a warp has, in this order
_KINDS = 3
_NEVER = np.iinfo(np.int64).max  # an interval that nobody will know of
_BITS = 1 << np.arange(WARP)
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
_FILLED_TWICE = "{element} is {verb} while the copy of line {line} to it is still under way"
_EARLY = "{element} is {verb} while the copy of line {line} to it is under way: wait for {awaited} first"
_UNSET = "{element}, which nothing has written, is {verb}"
_NOT_AWAITED = (
    "{element} is {verb} by thread {thread}, which has not waited for {awaited}: the copy of line {line} may not "
    "have arrived"
)
_MET = "{element} is {verb} by thread {thread} in line {own} and %s in line {line}{apart}"


class Clocks:
    """``known[warp, column]``: up to which number of the column all is done, as far as the warp knows."""

    def __init__(self, warps: int) -> None:
        self.warps = warps
        self.known: Ints = np.zeros((warps, _KINDS * warps), np.int64)
        self.alone: Ints = np.zeros(warps, np.int64)  # lanes with accesses since their warp's last syncwarp, as bits
        self.private: dict[tuple[int, int], Ints] = {}  # by warp and lanes, as bits: what they alone have waited for
        own = np.arange(warps)
        self.known[own, own] = 1  # the interval that a warp is in, which nobody else knows of

    def column(self) -> int:
        """A column for a new barrier."""
        number = int(self.known.shape[1])
        self.known = np.pad(self.known, ((0, 0), (0, 1)))
        return number

    def of(self, kind: int, warp: Any) -> Any:
        """The column of this kind that a warp has, or several have."""
        return kind * self.warps + warp

    def done(self, kind: int, warp: int, number: int) -> Ints:
        """What somebody knows who knows only that this column has come to this number."""
        found: Ints = np.zeros_like(self.known[warp])
        found[self.of(kind, warp)] = number
        return found

    def interval(self, warp: int) -> int:
        """Which of its intervals a warp is in: what it does now is done for others once they know so much."""
        return int(self.known[warp, warp])

    # --- what a lane knows ---

    def row(self, lane: int) -> Ints:
        """What a lane knows: its warp, and what it has waited for without the others."""
        return self._with_private(self.known[lane // WARP], lane // WARP, 1 << lane % WARP)

    def _with_private(self, found: Ints, warp: int, lanes: int) -> Ints:
        for (other, those), more in self.private.items():
            if other == warp and those & lanes:
                found = joined(found, more)
        return found

    def rows(self, lanes: Ints, columns: Ints) -> Ints:
        """Of each lane, what it knows of its column."""
        warps = lanes // WARP
        found: Ints = self.known[warps, columns]
        if not np.isin(list({warp for warp, _ in self.private}), warps).any():
            return found  # most often: a lane that waits alone seldom accesses anything itself
        for (warp, bits), more in self.private.items():
            own = (warps == warp) & (bits >> lanes % WARP & 1 != 0) & (columns < len(more))
            found[own] = np.maximum(found[own], more[columns[own]])
        return found

    def phases(self, lane: int) -> Ints:
        """The complete phases of barriers that a lane knows of: what it begins comes after them, wherever it ends."""
        found: Ints = self.row(lane).copy()
        found[: _KINDS * self.warps] = 0
        return found

    # --- handing over ---

    def pass_on(self, warps: Sequence[int]) -> None:
        """The lanes of each of these warps have met: what one knows all know, and a new interval begins."""
        chosen = list(warps)
        for warp, lanes in [key for key in self.private if key[0] in chosen]:
            self.acquire([warp], self.private.pop((warp, lanes)))
        self.known[chosen, chosen] += 1
        self.alone[chosen] = 0

    def release_of(self, warp: int, lanes: int) -> Ints:
        """What lanes of a warp, as bits, hand over: not what others of it did since the last syncwarp."""
        given = self._with_private(self.known[warp].copy(), warp, lanes)
        if self.alone[warp] & ~lanes:
            given[warp] -= 1
        else:
            self.known[warp, warp] += 1
            self.alone[warp] = 0
        return given

    def acquire(self, warps: Sequence[int], given: Ints) -> None:
        """These warps come to know what others handed over."""
        chosen, size = list(warps), len(given)
        self.known[chosen, :size] = np.maximum(self.known[chosen, :size], given)

    def acquire_by(self, warp: int, lanes: int, whole: int, given: Ints) -> None:
        """Lanes of a warp, as bits, come to know what others handed over; ``whole`` are all that it has."""
        if lanes == whole:
            self.acquire([warp], given)
        else:
            self.private[warp, lanes] = joined(given, self.private.get((warp, lanes), given))

    def meet(self, warps: Sequence[int]) -> None:
        """All lanes of these warps wait for each other."""
        chosen = list(warps)
        self.pass_on(chosen)
        given: Ints = self.known[chosen].max(axis=0)
        given[chosen] -= 1  # the intervals that have begun are their own
        self.acquire(chosen, given)


def joined(first: Ints, second: Ints) -> Ints:
    """What is known by either; a column that one of them does not have yet is the other's."""
    if len(first) < len(second):
        first, second = second, first
    found: Ints = first.copy()
    found[: len(second)] = np.maximum(found[: len(second)], second)
    return found


# --- shared memory ---


class Agent(NamedTuple):
    """Who accesses an array: on behalf of which warps, by which lane, in which line; ``verb`` says so."""

    state: State
    view: View
    warps: Any  # one warp, those of a warpgroup, or one for each element
    lane: Any
    line: int
    verb: str

    def known(self, column: Any) -> Ints:
        """The number of each column that the agent knows: all of its warps, if it has several."""
        clocks: Clocks = self.state.engines.clocks
        if np.ndim(self.lane):
            return clocks.rows(self.lane, column)
        row = clocks.known[self.warps].min(axis=0) if np.ndim(self.warps) else clocks.row(self.lane)
        found: Ints = row[column]
        return found


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
        # by kind and warp of a block, what its threads, or the engines it has set to work, read last: number, line
        self.readers: dict[tuple[int, int], tuple[Ints, Ints]] = {}
        self.under_way: Bools = np.zeros(count, np.bool_)
        self.pending = self.under_way

    def flat(self, block: int, places: Ints) -> Ints:
        """Elements of a block's array, as elements of all."""
        return places + block * self.size

    # --- ordinary accesses, of all active lanes ---

    def noted_read(self, state: State, view: View, at: Any, lanes: Bools, line: int) -> None:
        who, places = self._alone(state, at, lanes)
        agent = Agent(state, view, who // WARP, who, line, "read")
        self._written_before(agent, places)
        self._note(agent, places, ACCESS, state.engines.clocks.known[agent.warps, agent.warps])

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
        agent = Agent(state, view, warps, who, line, "written")
        self._written_before(agent, places, changed)
        self._read_before(agent, places, changed)
        self._put(places, warps, state.engines.clocks.known[warps, warps], who, line)
        self.stamp[places] = _stamps(state, who)
        self.fenced[places], self.rows[places] = _NEVER, _NOWHERE
        beaten = self.lane[places] != who
        if beaten.any():
            beaten &= ~same(values[np.searchsorted(who, self.lane[places])], values)
            self._tell("race", agent, places, beaten, _MET % "written at once by thread {other}")

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

    def read_by_engine(self, agent: Agent, places: Ints, kind: int, number: int) -> None:
        """wgmma (kind WGMMA) or a bulk store (STORE) reads; it is done when that column has come to ``number``."""
        assert self.written is not None
        early = self.under_way[places]
        self._tell("copy-not-awaited", agent, places, early, _EARLY)
        self._tell("read-before-write", agent, places, ~self.written[places] & ~early, _UNSET)
        by_threads = self.fenced[places] != 0
        self._written_before(agent, places[~by_threads])
        self._fenced_before(agent, places[by_threads])
        self._note(agent, places, kind, number)

    def _fenced_before(self, agent: Agent, places: Ints) -> None:
        """A fault where a thread wrote, and the agent does not know that it called fence_async since."""
        unfenced = self.fenced[places] > agent.known(self.column[places])
        if np.ndim(agent.warps) == 0:  # one lane's, of a warp whose others have fenced, with no syncwarp since
            others = (self.column[places] == agent.warps) & (self.lane[places] != agent.lane)
            unfenced |= others & (self.fence_stamp[places] == _stamps(agent.state, agent.lane))
        if not unfenced.any():
            self._written_before(agent, places)
        self._tell("proxy-fence", agent, places, unfenced, _NOT_FENCED)

    def filled_by_engine(self, agent: Agent, places: Ints, width: int, column: int, number: int) -> None:
        """A copy to these elements, rows of a box of this width, begins; it is done when that column has come to
        ``number``."""
        under_way = self.under_way[places]
        self._tell("race", agent, places, under_way, _FILLED_TWICE)
        self.rows[places], self.columns[places] = np.divmod(np.arange(len(places)), width)
        places = places[~under_way]
        self._written_before(agent, places)
        self._read_before(agent, places)
        self._put(places, column, number, agent.lane, agent.line)
        self.fenced[places] = 0
        self.under_way[places] = True
        assert self.written is not None
        self.written[places] = False
        self.complete = False
        self.data[places] = poisoned(1, self.dtype)[0]

    def misread(self, places: Ints, along_n: bool) -> str:
        """How an operand, elements by row and k, does not walk through copied boxes as they lie; or nothing. Its rows
        are columns of the boxes if ``along_n``."""
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

    def _tell(
        self, kind: str, agent: Agent, places: Ints, met: Bools, words: str, others: Ints | None = None,
        line_of: Ints | None = None,
    ) -> None:  # fmt: skip
        """A fault where accesses of the agent ``met`` what ``others``, lanes, did in the lines of ``line_of``, by
        place: what was written last, if nothing else is given. It is told of the first."""
        if not met.any():
            return
        state, view, n = agent.state, agent.view, int(np.argmax(met))
        place, lane = int(places[n]), int(np.broadcast_to(agent.lane, met.shape)[n])
        other = int(self.lane[place] if others is None else others[n])
        line = int((self.line if line_of is None else line_of)[place])
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
        warps = agent.warps if kind == ACCESS else np.min(agent.warps)
        per_block = agent.state.lanes_per_block // WARP
        numbers, of_block = (np.broadcast_to(value, places.shape) for value in (number, warps % per_block))
        for warp in np.unique(warps % per_block).tolist():
            if (kind, warp) not in self.readers:
                self.readers[kind, warp] = np.zeros(len(self.data), np.int64), np.zeros(len(self.data), np.int64)
            number_of, line_of = self.readers[kind, warp]
            own = of_block == warp if np.ndim(warps) else slice(None)
            number_of[places[own]], line_of[places[own]] = numbers[own], agent.line

    def _written_before(self, agent: Agent, places: Ints, among: Bools | None = None) -> None:
        """A fault where the agent does not know that what was written last is done."""
        column = self.column[places]
        if not len(places) or column.max() < 0:
            return
        met = (column >= 0) & (self.number[places] > agent.known(column))
        if np.ndim(agent.warps) == np.ndim(agent.lane):  # threads of one warp, with no syncwarp between
            unsynced = (column == agent.warps) & (self.lane[places] != agent.lane)
            met |= unsynced & (self.stamp[places] == _stamps(agent.state, agent.lane))
        if among is not None:
            met &= among
        if not met.any():
            return
        by_threads = column < agent.state.engines.clocks.warps
        awaited = met & ~by_threads & ~self.under_way[places]
        if awaited.any() and agent.verb != "written":
            self._tell("copy-not-awaited", agent, places, awaited, _NOT_AWAITED)
            met &= by_threads
        self._tell("race", agent, places, met, _MET % "written by thread {other}")

    def _read_before(self, agent: Agent, places: Ints, among: Bools | None = None) -> None:
        """A fault where the agent does not know that reads of what it overwrites are done."""
        numbers = np.array([number_of[places] for number_of, _ in self.readers.values()])
        if not numbers.any():
            return
        first_warp = places // self.size * (agent.state.lanes_per_block // WARP)
        first_column = np.array([agent.state.engines.clocks.of(kind, warp) for kind, warp in self.readers])
        late = numbers > agent.known(first_column[:, None] + first_warp)
        if among is not None:
            late &= among
        if not late.any():
            return
        for ((kind, warp), (_, line_of)), met in zip(self.readers.items(), late, strict=True):
            others = (first_warp + warp) * WARP
            self._tell("race", agent, places, met, _MET % _READERS[kind], others, line_of)
