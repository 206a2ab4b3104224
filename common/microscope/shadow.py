"""Who touched each element of global memory in a launch: races between threads, and between blocks.

Kept beside an allocation, as arrays with one entry per element. Threads have ordinals: the place of their block in
the order in which blocks run, times the lanes of a block, plus the lane. Of an element's readers the first, the last
and one more since the last barrier are known: enough to find, for any writer, a reader that nothing orders before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from common.microscope.memory import WARP, Bools, Ints
from common.microscope.rounds import across

if TYPE_CHECKING:
    from common.microscope.lanes import Machine
    from common.microscope.spaces import View

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


class _Readers:
    """Threads that read an element, or that changed it atomically."""

    def __init__(self, size: int) -> None:
        self.first = _Accesses(size)  # in the launch
        self.last = _Accesses(size)
        self.other = _Accesses(size)  # since the last barrier, and not the last

    def note(self, places: Ints, who: Ints, event: int, stamps: Any, log: Log) -> None:
        before, events = self.last.who[places], self.last.event[places]
        seen = before >= 0
        if seen.all():
            stays = before // log.lanes_per_block == who // log.lanes_per_block
            stays &= (log.stamps(events, before) >> BARRIER) == (np.asarray(stamps) >> BARRIER)
            moved = stays & (before != who)
            self.other.put(places[moved], before[moved], events[moved])
            self.other.who[places[~stays]] = _NOBODY
        else:
            fresh = places[~seen]
            self.first.put(fresh[::-1], who[~seen][::-1], event)
            if seen.any():
                lanes = np.flatnonzero(seen)
                rest = stamps[lanes] if isinstance(stamps, np.ndarray) else stamps
                self.note(places[lanes], who[lanes], event, rest, log)
            places, who = fresh, who[~seen]
        self.last.put(places, who, event)
        beaten = self.last.who[places] != who
        if beaten.any():
            self.other.put(places[beaten], who[beaten], event)


class Log:
    """The events of a launch, and which of its blocks have let others see what they wrote."""

    def __init__(self, lanes_per_block: int) -> None:
        self.lanes_per_block = lanes_per_block
        self.events: list[Event] = []
        self._base: list[int] = []  # the ordinal of an event's first lane
        self._alike = np.zeros(0, np.int64)  # the events' stamps where all lanes have the same
        self.fenced: dict[int, int] = {}  # block: the last event before its last threadfence
        self.released: dict[int, tuple[int, int]] = {}  # block: that, and its atomic operation after it
        self.acquired: dict[int, int] = {}  # block: its last atomic operation

    def add(self, line: int, stamps: Any, base: int) -> int:
        last = self.events[-1] if self.events else None
        if last is None or last.line != line or last.stamps is not stamps or self._base[-1] != base:
            self.events.append(Event(line, stamps))
            self._base.append(base)
        return len(self.events) - 1

    def fence(self, blocks: list[int]) -> None:
        """These blocks have called threadfence."""
        self.fenced.update(dict.fromkeys(blocks, len(self.events) - 1))

    def meet(self, blocks: list[int], event: int) -> None:
        """These blocks change something atomically."""
        if self.fenced:
            self.acquired.update(dict.fromkeys(blocks, event))
            self.released.update({b: (self.fenced[b], event) for b in blocks if b in self.fenced})

    def line(self, event: int) -> int:
        return self.events[event].line

    def stamps(self, events: Ints, who: Ints) -> Ints:
        """The stamps that threads had in events, as in :func:`stamps_in`."""
        if len(self._alike) < len(self.events):
            self._alike = alike_in([event.stamps for event in self.events])
        return stamps_in(lambda event: (self.events[event].stamps, self._base[event]), self._alike, events, who)

    def handed_over(self, first: int, event: int, second: int) -> bool:
        """Did the block ``first`` let others see what it did in ``event``, and has ``second`` looked since?

        The pattern of a sum's last block: write, threadfence, atomic add; atomic add, read.
        """
        fenced, released = self.released.get(first, (_NOBODY, 0))
        return event <= fenced and released <= self.acquired.get(second, _NOBODY)


class Shadow:
    """The accesses to one allocation in one launch."""

    def __init__(self, size: int, log: Log) -> None:
        self.log = log
        self.size = size
        self.writers = _Accesses(size)
        self.readers: _Readers | None = None
        self.atomics: _Readers | None = None

    def read(self, machine: Machine, view: View, places: Ints, lanes: Bools | Ints, line: int) -> None:
        """``lanes``: those that read, or the number of each place's."""
        who, stamps, event = self._begin(machine, lanes, line)
        self._met_writer(machine, view, places, who, stamps, line, "read", None)
        if self.atomics is not None:
            self._met(machine, view, self.atomics, places, who, stamps, line, "read", "changed atomically")
        if self.readers is None:
            self.readers = _Readers(self.size)
        self.readers.note(places, who, event, stamps, self.log)

    def write(
        self, machine: Machine, view: View, places: Ints, lanes: Bools | Ints, values: Any, data: Any, line: int
    ) -> None:
        """Before ``data[places] = values``, in the same order."""
        who, stamps, event = self._begin(machine, lanes, line)
        if machine.reversed:
            who, stamps = who[::-1], stamps[::-1] if isinstance(stamps, np.ndarray) else stamps
        changed = ~same(data[places], values)
        self._met_writer(machine, view, places, who, stamps, line, "written", changed)
        for others, verb in ((self.readers, "read"), (self.atomics, "changed atomically")):
            if others is not None:
                self._met(machine, view, others, places, who, stamps, line, "written", verb)
        self.writers.put(places, who, event)
        winner = self.writers.who[places]
        beaten = winner != who
        if beaten.any():
            final = data.copy()
            final[places] = values
            beaten &= ~same(final[places], values)
            self._report(machine, view, beaten, places, who, stamps, winner, event, line,
                         "written", "written at once")  # fmt: skip

    def atomic(self, machine: Machine, view: View, places: Ints, lanes: Bools, line: int) -> None:
        who, stamps, event = self._begin(machine, lanes, line)
        self._met_writer(machine, view, places, who, stamps, line, "changed atomically", None)
        if self.readers is not None:
            self._met(machine, view, self.readers, places, who, stamps, line, "changed atomically", "read")
        if self.atomics is None:
            self.atomics = _Readers(self.size)
        self.atomics.note(places, who, event, stamps, self.log)
        self.log.meet(machine.blocks_here(), event)

    def _begin(self, machine: Machine, lanes: Bools | Ints, line: int) -> tuple[Ints, Any, int]:
        who, stamps = machine.ordinals(lanes), machine.stamps
        event = self.log.add(line, stamps, machine.first_ordinal)
        return who, stamps[lanes] if isinstance(stamps, np.ndarray) else stamps, event

    def _met_writer(
        self, machine: Machine, view: View, places: Ints, who: Ints, stamps: Any, line: int, verb: str,
        among: Bools | None,
    ) -> None:  # fmt: skip
        writer = self.writers.who[places]
        met = (writer >= 0) & (writer != who)
        if among is not None:
            met &= among
        if met.any():
            self._report(
                machine, view, met, places, who, stamps, writer, self.writers.event[places], line, verb, "written"
            )

    def _met(
        self, machine: Machine, view: View, others: _Readers, places: Ints, who: Ints, stamps: Any, line: int,
        verb: str, theirs: str,
    ) -> None:  # fmt: skip
        size = self.log.lanes_per_block
        for slot in (others.last, others.other, others.first):
            other = slot.who[places]
            met = (other >= 0) & (other != who)
            if slot is others.first:  # of its own block the later ones tell
                met &= other // size != who // size
            if met.any():
                self._report(machine, view, met, places, who, stamps, other, slot.event[places], line, verb, theirs)

    def _report(
        self, machine: Machine, view: View, met: Bools, places: Ints, who: Ints, stamps: Any, other: Ints,
        events: Any, line: int, verb: str, theirs: str,
    ) -> None:  # fmt: skip
        """Faults for those of the accesses ``met`` that nothing orders."""
        chosen = np.flatnonzero(met)
        if not len(chosen):
            return
        places, who, other = places[chosen], who[chosen], other[chosen]
        events = events[chosen] if isinstance(events, np.ndarray) else np.full(len(chosen), events)
        stamps = stamps[chosen] if isinstance(stamps, np.ndarray) else stamps
        then = self.log.stamps(events, other), self.log.stamps(events, who)
        now = machine.stamps_of(other), stamps
        blocks, threads = apart(self.log.lanes_per_block, other, who, then, now)
        if blocks.any() and self.log.released:
            size = self.log.lanes_per_block
            for i in np.flatnonzero(blocks).tolist():
                if self.log.handed_over(int(other[i]) // size, int(events[i]), int(who[i]) // size):
                    blocks[i] = False
        for kind, found in (("overlap", blocks), ("race", threads)):
            if found.any():
                first = int(np.argmax(found))
                lines = line, self.log.line(int(events[first]))
                pair = int(who[first]), int(other[first])
                count = int(np.count_nonzero(found))
                self._tell(machine, view, kind, int(places[first]), pair, lines, (verb, theirs), count)

    def _tell(
        self, machine: Machine, view: View, kind: str, place: int, pair: tuple[int, int], lines: tuple[int, int],
        verbs: tuple[str, str], count: int,
    ) -> None:  # fmt: skip
        who, other = pair
        element = view.element(machine.offset_in(view, place, who))
        mine, theirs = machine.thread_of(who), machine.thread_of(other)
        what, why = "thread", f", with no barrier between{across(machine.home, *lines)}"
        if kind == "overlap":
            mine, theirs = machine.block_of(who), machine.block_of(other)
            what, why = "block", ": blocks do not wait for each other"
        text = (
            f"{element} is {verbs[0]} by {what} {mine} in line {lines[0]} and {verbs[1]} by {what} {theirs} in line "
            f"{lines[1]}{why}"
        )
        machine.fault_by(kind, lines[0], view.name, text, who, count)


def same(a: Any, b: Any) -> Bools:
    """Equal, or both NaN."""
    return np.asarray((a == b) | ((a != a) & (b != b)))
