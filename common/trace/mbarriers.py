"""Barriers in shared memory that count arrivals and bytes (mbarrier), and threads that wait for one of their phases.

PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier". A phase is complete when as many threads
have arrived as the barrier was made for, and all bytes that it was told to expect. What those who arrived knew is
known to those who wait for the phase.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np

from common.trace.clocks import joined
from common.trace.memory import WARP, Bools, Ints
from common.trace.spaces import Mask, as_offset
from common.trace.teams import Wait
from common.trace.values import Value

if TYPE_CHECKING:
    from common.trace.lanes import Machine


MOST = (1 << 20) - 1  # that a phase counts, of arrivals or of bytes


class Copy(Protocol):
    """A copy under way, whose bytes count at a barrier."""

    bytes: int
    known: Ints  # phases that were complete, as far as the thread knew that began it

    def arrive(self) -> None: ...


class Barrier:
    """One barrier of one block. ``phase`` counts those that are complete."""

    def __init__(self, machine: Machine, name: str, block: int) -> None:
        self.machine, self.name, self.block = machine, name, block
        self.arrivals = 0  # of a phase; 0 until barrier_init
        self.missing = 0  # arrivals of this phase that have not come
        self.expected = self.arrived = 0  # bytes of this phase
        self.expected_in = 0  # the line of the last barrier_expect
        self.phase = 0
        self.copies: list[Copy] = []
        self.column = machine.asynchronous.clocks.column()
        machine.asynchronous.by_column[self.column] = self
        self.made: tuple[int, int] | None = None  # by which warp, in which of its intervals
        self.made_in = 0  # the line; 0: it was used before
        self.published = False
        self.gathered: Ints = np.zeros(0, np.int64)  # what those know who have arrived in this phase
        self.known: Ints = np.zeros(0, np.int64)  # what those knew who arrived in complete phases

    def make(self, warp: int, arrivals: int, line: int) -> None:
        """barrier_init by a thread of a warp."""
        self.made_in = line
        self.arrivals = self.missing = arrivals
        self.made = warp, self.machine.asynchronous.clocks.interval(warp)
        self.published = False

    def passed(self, parity: int) -> bool:
        """Is the phase of this parity complete, the last one that has it?"""
        return self.phase % 2 != parity % 2

    def expect(self, count: int, line: int) -> None:
        self.expected, self.expected_in = self.expected + count, line

    def arrive(self, given: Ints) -> bool:
        """One arrival; False if it is one too many."""
        if self.missing == 0:
            return False
        self.missing -= 1
        self.gathered = joined(self.gathered, given)
        self._complete()
        return True

    def deliver(self) -> bool:
        """Let the bytes arrive that alone are missing; False if there are none."""
        if self.missing or not self.copies:
            return False
        engine = self.machine.asynchronous
        copies, self.copies = self.copies, []
        for number in engine.order.permutation(len(copies)).tolist():
            copies[number].arrive()
            self.gathered = joined(self.gathered, copies[number].known)
            self.arrived += copies[number].bytes
        self._complete()
        return True

    def _complete(self) -> None:
        if self.missing or self.arrived < self.expected:
            return
        if self.arrived > self.expected:
            text = f"{self.arrived} bytes arrive at {self.name} in a phase that expects {self.expected}"
            self.machine.asynchronous.fault_at(self.block, "mbarrier", self.expected_in, self.name, text)
        self.phase += 1
        if self.arrived:
            self.machine.asynchronous.pipeline.full(self)
        self.missing, self.expected, self.arrived = self.arrivals, 0, 0
        self.known = joined(joined(self.known, self.gathered), np.zeros(self.column + 1, np.int64))
        self.known[self.column] = self.phase
        self.gathered = np.zeros(0, np.int64)

    def lacks(self) -> str:
        """What this phase waits for."""
        came = self.arrivals - self.missing
        parts = [f"{came} of {self.arrivals} arrivals have come"]
        if self.expected or self.arrived:
            where = f" that line {self.expected_in} expects" if self.expected else ""
            parts.append(f"{self.arrived} of {self.expected} bytes{where}")
        return " and ".join(parts)


class Barriers:
    """An array of barriers in shared memory, of every block that runs."""

    def __init__(self, machine: Machine, count: int) -> None:
        self.machine, self.count, self.name = machine, count, ""
        self._all: dict[tuple[int, int], Barrier] = {}

    def at(self, block: int, i: int) -> Barrier:
        key = block, i
        if key not in self._all:
            self._all[key] = Barrier(self.machine, f"{self.name}[{i}]", block)
        return self._all[key]

    def __iter__(self) -> Iterator[Barrier]:
        return iter(self._all.values())

    def named(self, line: int, i: Value, verb: str) -> list[tuple[int, int]]:
        """The active lanes, and the barrier that each names; one beyond the array is a fault."""
        machine = self.machine
        numbers = np.broadcast_to(np.asarray(as_offset(i)), machine.mask.bits.shape)
        wrong = machine.mask.bits & ((numbers < 0) | (numbers >= self.count))
        if wrong.any():
            first = int(numbers[int(np.argmax(wrong))])
            text = f"{self.name} is {verb} at {first}, its extent is {self.count}"
            machine.fault("outside", line, self.name, text, wrong)
        lanes = np.flatnonzero(machine.mask.bits & ~wrong)
        return list(zip(lanes.tolist(), numbers[lanes].tolist(), strict=True))


class ForPhase(Wait):
    """Until barriers have completed the phases of these parities."""

    def __init__(self, line: int, mask: Mask, wanted: list[tuple[Barrier, int]]) -> None:
        self.line, self.mask, self.wanted = line, mask, wanted

    def over(self) -> bool:
        return all(barrier.passed(parity) for barrier, parity in self.wanted)

    def _waits(self) -> Iterator[Barrier]:
        return (barrier for barrier, parity in self.wanted if not barrier.passed(parity))

    def hurry(self) -> bool:
        return any(barrier.deliver() for barrier in self._waits())

    def begun(self) -> bool:
        return any(barrier.missing < barrier.arrivals for barrier in self._waits())

    def for_bytes(self) -> bool:
        return any(barrier.arrived != barrier.expected for barrier in self._waits())

    def tell(self, machine: Machine) -> None:
        barrier, parity = next((b, p) for b, p in self.wanted if not b.passed(p))
        text = f"the phase of parity {parity} of {barrier.name} is never complete: {barrier.lacks()}"
        of_block: Bools = self.mask.bits & (machine.block_number == barrier.block)
        machine.fault("deadlock", self.line, barrier.name, text, of_block, lane=int(np.argmax(of_block)))


def make(machine: Machine, line: int, lane: int, barrier: Barrier, arrivals: int) -> None:
    """One lane makes a barrier; a fault if it is there already, or cannot count so many."""
    text = ""
    if barrier.made_in:
        text = f"{barrier.name} is made again: it was made in line {barrier.made_in}"
    elif not 1 <= arrivals <= MOST:
        text = f"{barrier.name} is to wait for {arrivals} arrivals, which must be from 1 to {MOST}"
    if text:
        machine.asynchronous.fault_of(lane, "mbarrier", line, barrier.name, text)
    barrier.make(lane // WARP, max(arrivals, 1), line)


def usable(machine: Machine, line: int, barrier: Barrier, lane: int) -> None:
    """A fault unless the barrier is made and published, and this lane knows it."""
    engine = machine.asynchronous
    text = ""
    if barrier.made is None:
        text = f"{barrier.name} is used, and no barrier_init has made it"
        barrier.make(lane // WARP, 1, 0)
    elif engine.clocks.row(lane)[barrier.made[0]] < barrier.made[1]:
        text = f"{barrier.name} is used with no barrier of the block, or the cluster, after its barrier_init"
    elif not barrier.published:
        text = f"{barrier.name} is used, and no publish_barriers follows its barrier_init"
    if text:
        engine.fault_of(lane, "mbarrier", line, barrier.name, text, "barriers that are not there")


def _bits(lanes: list[int]) -> dict[int, int]:
    """Lanes as bits, by warp."""
    bits: dict[int, int] = {}
    for lane in lanes:
        bits[lane // WARP] = bits.get(lane // WARP, 0) | 1 << lane % WARP
    return bits


def handed_over(machine: Machine, lanes: list[int]) -> dict[int, Ints]:
    """By warp, what these lanes hand over as they arrive."""
    return {warp: machine.asynchronous.clocks.release_of(warp, bits) for warp, bits in _bits(lanes).items()}


def arrive(machine: Machine, line: int, lane: int, barrier: Barrier, given: Ints, count: int = 0) -> None:
    """One lane arrives with what it hands over; it expects so many bytes more."""
    engine = machine.asynchronous
    usable(machine, line, barrier, lane)
    if engine.clocks.row(lane)[barrier.column] < barrier.phase:
        text = (
            f"an arrival at {barrier.name} may come in the phase before: nothing that this thread has waited for "
            f"says that its {barrier.arrivals} arrivals, and its bytes, have come"
        )
        machine.fault("mbarrier", line, barrier.name, text, lane=lane, count=1)
    if barrier.block != machine.block_number[lane]:
        engine.remote[line, lane, barrier.block] = engine.syncs, barrier.column, barrier.phase + 1
    if not 0 <= barrier.expected - barrier.arrived + count <= MOST or count < 0:
        text = f"{barrier.name} is to wait for {count} bytes: a phase counts up to {MOST}"
        machine.fault("mbarrier", line, barrier.name, text, lane=lane, count=1)
    if barrier.missing:
        barrier.expect(count, line)
    if not barrier.arrive(given):
        came = f"all {barrier.arrivals} arrivals of the phase have come"
        still = f", and {barrier.expected - barrier.arrived} bytes have not" if barrier.expected else ""
        text = f"one arrival at {barrier.name} is too many: {came}{still}"
        machine.fault("mbarrier", line, barrier.name, text, lane=lane, count=1)


def wait(machine: Machine, line: int, bars: Barriers, i: Value, parity: Value) -> None:
    engine = machine.asynchronous
    parities = np.broadcast_to(np.asarray(parity).astype(np.int64), machine.mask.bits.shape)
    lanes: dict[tuple[int, int, int], list[int]] = {}
    for lane, number in bars.named(line, i, "waited for"):
        if parities[lane] not in (0, 1):
            text = f"the parity of a phase is 0 or 1, and this is {parities[lane]}"
            machine.fault("operand", line, bars.name, text, lane=lane, count=1)
        key = int(machine.block_number[lane]), number, int(parities[lane]) & 1
        lanes.setdefault(key, []).append(lane)
    wanted = []
    for (block, number, bit), those in lanes.items():
        barrier = bars.at(block, number)
        usable(machine, line, barrier, those[0])
        wanted.append((barrier, bit))
    engine.teams.until(ForPhase(line, machine.mask, wanted))
    alive = _bits(np.flatnonzero(machine.waiting.bits).tolist())
    for (barrier, _), those in zip(wanted, lanes.values(), strict=True):
        for warp, bits in _bits(those).items():
            engine.clocks.acquire_by(warp, bits, alive.get(warp, bits), barrier.known)


def all_arrive(
    machine: Machine,
    line: int,
    bars: Barriers,
    i: Value,
    block: Callable[[int], int | None],
    count: Callable[[int], int] = lambda lane: 0,
) -> None:
    """The active lanes arrive, each at the barrier that it names of the ``block`` of that lane, if there is one."""
    named = bars.named(line, i, "used")
    given = handed_over(machine, [lane for lane, _ in named])
    for lane, number in named:
        where = block(lane)
        if where is not None:
            arrive(machine, line, lane, bars.at(where, number), given[lane // WARP], count(lane))
