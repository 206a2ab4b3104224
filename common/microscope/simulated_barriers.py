"""Barriers in shared memory that count arrivals and bytes (mbarrier), as the simulator's threads use them."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy as np

from common.microscope.order import Row
from common.microscope.simulated_threads import BarrierError, OperandError, Parked, Threads, named

MOST = (1 << 20) - 1  # that a phase counts, of arrivals or of bytes


@dataclass(eq=False)
class Barrier:
    """``bytes`` are those that its phase still waits for; negative if more came than it was told of."""

    name: str
    arrivals: int
    line: int  # of barrier_init
    pending: int
    phase: int = 0
    bytes: int = 0
    expected: int = 0
    gathered: Row | None = None
    done: Row | None = None
    waiting: list[Any] = field(default_factory=list)

    def take(self, count: int) -> None:
        """So many bytes have come."""
        self.bytes -= count
        self.complete()

    def complete(self) -> None:
        """Begin the next phase if nothing of this one is still to come."""
        if self.pending or self.bytes:
            return
        self.phase += 1
        self.pending, self.expected = self.arrivals, 0
        self.done = self.gathered
        for block, thread in self.waiting:
            block.wake(thread)
        self.waiting.clear()

    def wants(self) -> str:
        parts = []
        if self.pending:
            parts.append(f"{_counted(self.pending, 'arrival')} of {self.arrivals}")
        if self.bytes > 0:
            parts.append(f"{self.bytes} of {self.expected} bytes")
        text = " and ".join(parts)
        if self.bytes < 0:
            more = f"{-self.bytes} bytes more than the {self.expected} expected have come"
            return f"{text}, and {more}" if text else more
        return f"{text} {'are' if len(parts) > 1 or self.bytes > 0 or self.pending > 1 else 'is'} still to come"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


class Barriers:
    """Those of a cluster's blocks. An array is known by the place that makes it, the same in all blocks."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._arrays: dict[int, Any] = {}
        self._all: dict[tuple[int, Any, int], Barrier] = {}

    def array(self, count: Any) -> Any:
        allocations = self._threads.module.block.allocations
        array = allocations.setdefault(None, np.empty(int(count), np.int64))
        self._arrays[id(array)] = next(place for place, one in allocations.items() if one is array)
        return array

    def at(self, call: str, bars: Any, i: Any, frame: FrameType, rank: int) -> Barrier:
        """The barrier of the block of this rank. Raises BarrierError if it is not made."""
        found = self._all.get((rank, self._place(call, bars, i, frame), int(i)))
        if found is None:
            own = rank == self._threads.module.block.rank
            elsewhere = "" if own else f" in block {rank} of the cluster: cluster_sync() comes first"
            raise BarrierError(f"{call} at line {frame.f_lineno}: {named(bars, frame)}[{int(i)}] is used before "
                               f"barrier_init{elsewhere}")  # fmt: skip
        return found

    def _place(self, call: str, bars: Any, i: Any, frame: FrameType) -> Any:
        if id(bars) not in self._arrays:
            raise OperandError(f"{call} at line {frame.f_lineno}: {named(bars, frame)} is no barrier_array()")
        if not 0 <= i < len(bars):
            raise IndexError(f"{named(bars, frame)}[{int(i)}]: index {int(i)} is out of bounds: "
                             f"{named(bars, frame)} has shape ({len(bars)},)")  # fmt: skip
        return self._arrays[id(bars)]

    def init(self, bars: Any, i: Any, arrivals: Any) -> None:
        block, _, frame = self._threads.here()
        place = self._place("barrier_init", bars, i, frame)
        name, key = f"{named(bars, frame)}[{int(i)}]", (block.rank, place, int(i))
        if key in self._all:
            raise BarrierError(f"barrier_init at line {frame.f_lineno}: {name} was made at line "
                               f"{self._all[key].line} already")  # fmt: skip
        if not 1 <= arrivals <= MOST:
            raise BarrierError(f"barrier_init at line {frame.f_lineno}: {name} is to wait for {int(arrivals)} "
                               f"arrivals: must be from 1 to {MOST}")  # fmt: skip
        self._all[key] = Barrier(name, int(arrivals), frame.f_lineno, int(arrivals))

    def publish(self) -> None:
        """Here everybody sees at once what is made."""

    def expect(self, bars: Any, i: Any, count: Any) -> None:
        block, thread, frame = self._threads.here()
        barrier = self.at("barrier_expect", bars, i, frame, block.rank)
        if count < 0 or barrier.bytes + count > MOST:
            raise BarrierError(f"barrier_expect at line {frame.f_lineno}: {barrier.name} is to wait for {int(count)} "
                               f"bytes: a phase counts up to {MOST}")  # fmt: skip
        barrier.bytes += int(count)
        barrier.expected += int(count)
        self._arrive("barrier_expect", barrier, thread, frame.f_lineno)

    def arrive(self, bars: Any, i: Any) -> None:
        block, thread, frame = self._threads.here()
        self._arrive("barrier_arrive", self.at("barrier_arrive", bars, i, frame, block.rank), thread, frame.f_lineno)

    def arrive_at(self, bars: Any, i: Any, rank: Any) -> None:
        _, thread, frame = self._threads.here()
        self._threads.require_rank("barrier_arrive_at", int(rank), frame.f_lineno)
        barrier = self.at("barrier_arrive_at", bars, i, frame, int(rank))
        self._arrive("barrier_arrive_at", barrier, thread, frame.f_lineno)

    def _arrive(self, call: str, barrier: Barrier, thread: int, line: int) -> None:
        if barrier.pending == 0:
            had = _counted(barrier.arrivals, "arrival")
            raise BarrierError(f"{call} at line {line}: phase {barrier.phase} of {barrier.name} has had its {had}, "
                               f"and waits for {barrier.bytes} bytes")  # fmt: skip
        # who hears of a phase hears of those before it
        barrier.gathered = self._threads.clocks.hand_on(thread, barrier.gathered)
        barrier.pending -= 1
        barrier.complete()

    def wait(self, bars: Any, i: Any, parity: Any) -> None:
        block, thread, frame = self._threads.here()
        barrier = self.at("barrier_wait", bars, i, frame, block.rank)
        if parity not in (0, 1):
            raise OperandError(f"barrier_wait at line {frame.f_lineno}: the parity is {int(parity)}: must be 0 or 1")
        while barrier.phase % 2 == parity:
            phase = barrier.phase
            barrier.waiting.append((block, self._threads.module.thread))

            def wants(phase: int = phase) -> str:
                return f"phase {phase} (parity {phase % 2}) of {barrier.name}, of which {barrier.wants()}"

            block.park(Parked("barrier_wait", frame.f_lineno, wants, bool(barrier.bytes)))
        if barrier.done is not None:
            self._threads.clocks.hear(thread, barrier.done)
