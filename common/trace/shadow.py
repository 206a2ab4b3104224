"""Who touched each element of global memory in a launch: races between threads, and between blocks.

Kept beside an allocation, as arrays with one entry per element. Threads have ordinals: the place of their block in
the order in which blocks run, times the lanes of a block, plus the lane. Of an element's readers, and of those who
wrote the value it has, three are known: enough to find, for any other thread, one that nothing orders before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from common.trace.memory import WARP, Bools, Ints
from common.trace.rounds import across

if TYPE_CHECKING:
    from common.trace.lanes import Machine
    from common.trace.spaces import View

BARRIER = 20  # bits of a stamp below the number of barriers that a thread has passed: those count its syncwarps
_NOBODY = -1


class Event(NamedTuple):
    """One access by an instruction: its line, and the stamps of the lanes that ran it, all alike or one each."""

    line: int
    stamps: Any


def apart(
    lanes_per_block: int, first: Ints, second: Ints, then: tuple[Any, Any], now: tuple[Any, Any]
) -> tuple[Bools, Bools]:
    """For threads: are they of different blocks; are they of one block, and no barrier lies between?

    ``then`` holds the stamps of both as the first made its access, ``now`` those as the second made its own. Lanes of
    a warp are ordered only if both have come to a syncwarp meanwhile: one that one of them alone comes to does
    nothing.
    """
    other_block = first // lanes_per_block != second // lanes_per_block
    same_turn = (np.asarray(then[0]) >> BARRIER) == (np.asarray(now[1]) >> BARRIER)
    one_warp = first // WARP == second // WARP
    both_came = (np.asarray(then[0]) != now[0]) & (np.asarray(then[1]) != now[1])
    return other_block, ~other_block & (first != second) & same_turn & ~(one_warp & both_came)


def stamps_in(moments: Callable[[int], tuple[Any, int]], alike: Ints, events: Ints, who: Ints) -> Ints:
    """The stamps that threads had in events; of a thread of blocks that ran at another time, anything.

    ``alike`` is what :func:`alike_in` gives; ``moments(event)`` are an event's stamps by lane, and the ordinal of its
    first lane.
    """
    found: Ints = alike[events]
    own = np.flatnonzero(found < 0)
    for event in np.unique(events[own]).tolist():
        chosen = own[events[own] == event]
        stamps, base = moments(event)
        found[chosen] = stamps.take(who[chosen] - base, mode="clip")
    return found


def alike_in(moments: list[Any]) -> Ints:
    """Of each event the stamp that all lanes have, -1 where they differ."""
    return np.array([-1 if isinstance(stamps, np.ndarray) else stamps for stamps in moments], np.int64)


class _Accesses:
    """A thread for each element, and the event in which it touched it."""

    def __init__(self, size: int) -> None:
        self.who = np.full(size, _NOBODY, np.int64)
        self.event = np.zeros(size, np.int64)

    def put(self, places: Ints, who: Ints, event: Any) -> None:
        self.who[places] = who
        self.event[places] = event


class Together:
    """Threads that read an element, changed it atomically, or wrote the value that it has.

    Of them the last; one more since the last barrier, of another warp if there is one; and one of another block.
    """

    def __init__(self, size: int) -> None:
        self.last = _Accesses(size)
        self.size = size
        self._others: tuple[_Accesses, _Accesses] | None = None  # beside the last, elsewhere; most elements have none

    def slots(self) -> tuple[_Accesses, ...]:
        return (self.last, *(self._others or ()))

    def forget(self, places: Ints) -> None:
        for slot in self.slots():
            slot.who[places] = _NOBODY

    def note(self, places: Ints, who: Ints, event: int, stamps: Any, log: Log) -> None:
        before = self.last.who[places]
        if (before >= 0).any():
            self._move(places, who, before, stamps, log)
        self.last.put(places, who, event)
        winner = self.last.who[places]
        beaten = winner != who
        if beaten.any():
            # the first of them comes last, and so stays: it is the furthest from the winner
            chosen = np.flatnonzero(beaten)[::-1]
            self._beside(places[chosen], winner[chosen], who[chosen], np.full(len(chosen), event), log)

    def _move(self, places: Ints, who: Ints, before: Ints, stamps: Any, log: Log) -> None:
        """Make room for new last ones: keep those that are the last so far."""
        events = self.last.event[places]
        passed = log.stamps(events, before) >> BARRIER != np.asarray(stamps) >> BARRIER
        here = before // log.lanes_per_block == who // log.lanes_per_block
        if self._others:
            beside = self._others[0]
            beside.who[places[passed | ~here]] = _NOBODY
        moved = (before >= 0) & (before != who) & ~(here & passed)
        if moved.any():
            self._beside(places[moved], who[moved], before[moved], events[moved], log)

    def _beside(self, places: Ints, last: Ints, other: Ints, events: Ints, log: Log) -> None:
        """Keep ``other`` for elements whose last one is now ``last``, where it tells more than who is kept so far."""
        if self._others is None:
            self._others = _Accesses(self.size), _Accesses(self.size)
        beside, elsewhere = self._others
        here = last // log.lanes_per_block == other // log.lanes_per_block
        elsewhere.put(places[~here], other[~here], events[~here])
        kept = beside.who[places]
        more = here & ((other // WARP != last // WARP) | (kept < 0) | (kept // WARP == last // WARP))
        beside.put(places[more], other[more], events[more])


class Met(NamedTuple):
    """Threads of a block, with their stamps, that have called threadfence or changed something atomically."""

    event: int
    who: Ints
    stamps: Ints
    fence: Met | None = None  # for an atomic operation: those that had called it before


def _followed(first: Ints, then: Ints, second: Ints, now: Ints) -> Bools:
    """For each thread of a block with its stamp ``then``: does one of the ``second`` come after it?"""
    latest = _by_warp(np.maximum, second, now, -1, first)
    found: Bools = np.isin(first, second) | (then >> BARRIER < now.max() >> BARRIER) | (latest > then)
    return found


def _preceded(second: Ints, now: Ints, first: Ints, then: Ints) -> Bools:
    """For each thread of a block with its stamp ``now``: does one of the ``first`` come before it?"""
    most = np.iinfo(np.int64).max
    earliest = _by_warp(np.minimum, first, then, most, second)
    found: Bools = np.isin(second, first) | (now >> BARRIER > then.min() >> BARRIER) | (earliest < now)
    return found


def _by_warp(reduced: np.ufunc, who: Ints, stamps: Ints, none: int, asked: Ints) -> Ints:
    """What the stamps of each asked thread's warp are reduced to; ``none`` if none of it is among ``who``."""
    warps, which = np.unique(who // WARP, return_inverse=True)
    values = np.full(len(warps), none)
    reduced.at(values, which, stamps)
    place = np.searchsorted(warps, asked // WARP).clip(max=len(warps) - 1)
    return np.where(warps[place] == asked // WARP, values[place], none)


class Log:
    """The events of a launch, and which of its blocks have let others see what they wrote."""

    def __init__(self, lanes_per_block: int) -> None:
        self.lanes_per_block = lanes_per_block
        self.events: list[Event] = []
        self._base: list[int] = []  # the ordinal of an event's first lane
        self._alike = np.zeros(0, np.int64)  # the events' stamps where all lanes have the same
        self._fences: dict[int, list[Met]] = {}  # by block: those that no atomic operation has come after
        self.released: dict[int, list[Met]] = {}  # by block: atomic operations that tell others what came before
        self._acquired: dict[int, list[Met]] = {}  # by block: atomic operations that may have been told

    def add(self, line: int, stamps: Any, base: int) -> int:
        last = self.events[-1] if self.events else None
        if last is None or last.line != line or last.stamps is not stamps or self._base[-1] != base:
            self.events.append(Event(line, stamps))
            self._base.append(base)
        return len(self.events) - 1

    def fence(self, who: Ints, stamps: Any) -> None:
        """These threads have called threadfence."""
        for block, own, moments in self._by_block(who, stamps):
            self._fences.setdefault(block, []).append(Met(len(self.events) - 1, own, moments))

    def meet(self, who: Ints, stamps: Any, event: int) -> None:
        """These threads change something atomically."""
        if not (self._fences or self.released):
            return
        for block, own, moments in self._by_block(who, stamps):
            acquired = self._acquired.setdefault(block, [])
            if acquired and np.array_equal(acquired[-1].who, own) and np.array_equal(acquired[-1].stamps, moments):
                acquired.pop()  # as in a loop that waits
            acquired.append(Met(event, own, moments))
            pending = self._fences.pop(block, [])
            for fence in pending:
                before = _followed(fence.who, fence.stamps, own, moments)
                if before.any():
                    done = fence._replace(who=fence.who[before], stamps=fence.stamps[before])
                    self.released.setdefault(block, []).append(Met(event, own, moments, done))
                if not before.all():
                    rest = fence._replace(who=fence.who[~before], stamps=fence.stamps[~before])
                    self._fences.setdefault(block, []).append(rest)

    def _by_block(self, who: Ints, stamps: Any) -> Iterator[tuple[int, Ints, Ints]]:
        blocks, stamps = who // self.lanes_per_block, np.broadcast_to(np.asarray(stamps), who.shape)
        for block in np.unique(blocks).tolist():
            own = blocks == block
            yield block, who[own], stamps[own]

    def line(self, event: int) -> int:
        return self.events[event].line

    def stamps(self, events: Ints, who: Ints) -> Ints:
        """The stamps that threads had in events, as in :func:`stamps_in`."""
        known = len(self._alike)
        if known < len(self.events):
            self._alike = np.append(self._alike, alike_in([event.stamps for event in self.events[known:]]))
        return stamps_in(lambda event: (self.events[event].stamps, self._base[event]), self._alike, events, who)

    def handed_over(self, first: Ints, then: Ints, events: Ints, second: Ints, now: Ints) -> Bools:
        """Did threads of a block let another block see what they did in events, and have its threads looked since?

        ``then`` and ``now`` are their stamps. The pattern of a sum's last block: write, threadfence, atomic add;
        atomic add, read. Where two of these are not of one thread, a barrier stands between them.
        """
        found = np.zeros(len(first), np.bool_)
        pairs = np.stack((first, second)) // self.lanes_per_block
        for one, other in np.unique(pairs, axis=1).T.tolist():
            own = np.flatnonzero((pairs[0] == one) & (pairs[1] == other))
            looked = np.full(len(own), _NOBODY)
            for met in self._acquired.get(other, ()):
                looked[_preceded(second[own], now[own], met.who, met.stamps)] = met.event
            for met in self.released.get(one, ()):
                assert met.fence is not None
                told = (met.event <= looked) & (events[own] <= met.fence.event)
                if told.any():
                    found[own] |= told & _followed(first[own], then[own], met.fence.who, met.fence.stamps)
        return found


class Moment(NamedTuple):
    """An access: its threads and their stamps, those that other threads of the block have now, its event and line."""

    who: Ints
    stamps: Any
    others: Callable[[Ints], Any]
    event: int
    line: int

    def backward(self) -> Moment:
        stamps = self.stamps[::-1] if isinstance(self.stamps, np.ndarray) else self.stamps
        return self._replace(who=self.who[::-1], stamps=stamps)


class Shadow:
    """The accesses to one allocation in one launch."""

    def __init__(self, size: int, log: Log) -> None:
        self.log = log
        self.size = size
        self.writers = Together(size)
        self.readers: Together | None = None
        self.atomics: Together | None = None

    def read(self, machine: Machine, view: View, places: Ints, lanes: Bools | Ints, line: int) -> None:
        """``lanes``: those that read, or the number of each place's."""
        self.note_read(machine, view, places, self._begin(machine, lanes, line))

    def write(
        self, machine: Machine, view: View, places: Ints, lanes: Bools | Ints, values: Any, data: Any, line: int
    ) -> None:
        """Before ``data[places] = values``, in the same order."""
        now = self._begin(machine, lanes, line)
        self.note_write(machine, view, places, values, data, now.backward() if machine.reversed else now)

    def atomic(self, machine: Machine, view: View, places: Ints, lanes: Bools, line: int) -> None:
        """``places``: one for each of the lanes, whichever is first."""
        now = self._begin(machine, lanes, line)
        if machine.reversed:
            places, now = places[::-1], now.backward()
        self.note_atomic(machine, view, places, now)
        self.log.meet(now.who, now.stamps, now.event)

    def note_read(self, machine: Machine, view: View, places: Ints, now: Moment) -> None:
        self._met(machine, view, (self.writers.last,), places, now, "read", "written")
        if self.atomics is not None:
            self._met(machine, view, self.atomics.slots(), places, now, "read", "changed atomically")
        if self.readers is None:
            self.readers = Together(self.size)
        self.readers.note(places, now.who, now.event, now.stamps, self.log)

    def note_write(self, machine: Machine, view: View, places: Ints, values: Any, data: Any, now: Moment) -> None:
        changed, lanes = ~same(data[places], values), self.log.lanes_per_block
        self._met(machine, view, self.writers.slots(), places, now, "written", "written", changed)
        if self.readers is not None:
            self._met(machine, view, self.readers.slots(), places, now, "written", "read")
        if self.atomics is not None:
            changing = self.atomics.last.who[places]
            self._met(machine, view, (self.atomics.last,), places, now, "written", "changed atomically")
            for slot in self.atomics.slots()[1:]:
                # as the last block puts a counter back: its own atomic operation came after all others'
                others = slot.who[places] // lanes
                loose = (others == now.who // lanes) | (changing // lanes != now.who // lanes)
                self._met(machine, view, (slot,), places, now, "written", "changed atomically", loose)
        self.writers.forget(places[changed])
        self.writers.note(places, now.who, now.event, now.stamps, self.log)
        winner = self.writers.last.who[places]
        beaten = winner != now.who
        if beaten.any():
            final = data.copy()
            final[places] = values
            beaten &= ~same(final[places], values)
            self._report(machine, view, beaten, places, now, winner, now.event, "written", "written at once")

    def note_atomic(self, machine: Machine, view: View, places: Ints, now: Moment) -> None:
        self._met(machine, view, self.writers.slots(), places, now, "changed atomically", "written")
        if self.readers is not None:
            self._met(machine, view, self.readers.slots(), places, now, "changed atomically", "read")
        if self.atomics is None:
            self.atomics = Together(self.size)
        self.atomics.note(places, now.who, now.event, now.stamps, self.log)

    def _begin(self, machine: Machine, lanes: Bools | Ints, line: int) -> Moment:
        who, stamps = machine.ordinals(lanes), machine.stamps
        event = self.log.add(line, stamps, machine.first_ordinal)
        own = stamps[lanes] if isinstance(stamps, np.ndarray) else stamps
        return Moment(who, own, machine.stamps_of, event, line)

    def _met(
        self, machine: Machine, view: View, slots: tuple[_Accesses, ...], places: Ints, now: Moment, verb: str,
        theirs: str, among: Bools | None = None,
    ) -> None:  # fmt: skip
        """Faults for the accesses, or for those ``among`` them, that others met whom nothing orders before them."""
        for slot in slots:
            other = slot.who[places]
            met = (other >= 0) & (other != now.who)
            if among is not None:
                met &= among
            if met.any():
                self._report(machine, view, met, places, now, other, slot.event[places], verb, theirs)

    def _report(
        self, machine: Machine, view: View, met: Bools, places: Ints, now: Moment, other: Ints, events: Any,
        verb: str, theirs: str,
    ) -> None:  # fmt: skip
        """Faults for those of the accesses ``met`` that nothing orders."""
        chosen = np.flatnonzero(met)
        if not len(chosen):
            return
        places, who, other = places[chosen], now.who[chosen], other[chosen]
        events = events[chosen] if isinstance(events, np.ndarray) else np.full(len(chosen), events)
        stamps = now.stamps[chosen] if isinstance(now.stamps, np.ndarray) else now.stamps
        then = self.log.stamps(events, other), self.log.stamps(events, who)
        blocks, threads = apart(self.log.lanes_per_block, other, who, then, (now.others(other), stamps))
        if blocks.any() and self.log.released:
            own = np.broadcast_to(np.asarray(stamps), who.shape)
            blocks[blocks] = ~self.log.handed_over(
                other[blocks], then[0][blocks], events[blocks], who[blocks], own[blocks]
            )
        for kind, found in (("overlap", blocks), ("race", threads)):
            if found.any():
                plainer = found & (who // WARP != other // WARP)
                first_one = int(np.argmax(plainer if plainer.any() else found))
                lines = now.line, self.log.line(int(events[first_one]))
                pair = int(who[first_one]), int(other[first_one])
                count = int(np.count_nonzero(found))
                self._tell(machine, view, kind, int(places[first_one]), pair, lines, (verb, theirs), count)

    def _tell(
        self, machine: Machine, view: View, kind: str, place: int, pair: tuple[int, int], lines: tuple[int, int],
        verbs: tuple[str, str], count: int,
    ) -> None:  # fmt: skip
        who, other = pair
        element = view.element(machine.offset_in(view, place, who))
        if kind == "race":
            text = self.racing(machine, element, pair, lines, verbs)
        else:
            text = (
                f"{element} is {verbs[0]} by block {machine.block_of(who)} in line {lines[0]} and {verbs[1]} by "
                f"block {machine.block_of(other)} in line {lines[1]}: blocks do not wait for each other"
            )
        machine.fault_by(kind, lines[0], view.name, text, who, count)

    @staticmethod
    def racing(
        machine: Machine, element: str, pair: tuple[int, int], lines: tuple[int, int], verbs: tuple[str, str]
    ) -> str:
        """That two threads access an element, with no barrier between."""
        mine, theirs = (machine.thread_of(one) for one in pair)
        return (
            f"{element} is {verbs[0]} by thread {mine} in line {lines[0]} and {verbs[1]} by thread {theirs} in line "
            f"{lines[1]}, with no barrier between{across(machine.home, *lines)}"
        )


def same(a: Any, b: Any) -> Bools:
    """Equal, or both NaN."""
    return np.asarray((a == b) | ((a != a) & (b != b)))
