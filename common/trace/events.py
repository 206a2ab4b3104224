"""What the threads of a launch did and when: the order that barriers, syncwarps, fences and atomic operations make.

Threads have ordinals: the place of their block in the order in which blocks run, times the lanes of a block, plus the
lane. Their stamps count the barriers that they have passed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from common.trace.cost import WARP, Bools, Ints

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
        self._alike = np.zeros(0, np.int64)  # the events' stamps where all lanes have the same, else -1
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
        """The stamps that threads had in events; of a thread of blocks that ran at another time, anything."""
        new = [event.stamps for event in self.events[len(self._alike) :]]
        if new:
            alike = [-1 if isinstance(stamps, np.ndarray) else stamps for stamps in new]
            self._alike = np.append(self._alike, np.array(alike, np.int64))
        found: Ints = self._alike[events]
        own = np.flatnonzero(found < 0)
        for event in np.unique(events[own]).tolist():
            chosen = own[events[own] == event]
            found[chosen] = self.events[event].stamps.take(who[chosen] - self._base[event], mode="clip")
        return found

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
