"""The threads that run at once: which are active, what barriers each has passed, how a fault of one is reported.

Blocks are padded to whole warps, and the lanes of several blocks lie one after another. What differs between threads
is an array with one element per lane. A thread's *ordinal* tells it from all others of the launch: the number of its
block, in the order in which blocks run, times the lanes of a block, plus its place in the block.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from common.explain.faults import Fault
from common.trace.cost import WARP, Bools, Ints, Ledger, count_nonzero
from common.trace.messages import Point
from common.trace.values import Value, uniform

BARRIER = 20  # bits of a stamp below the number of barriers that a thread has passed: those count its syncwarps
_NOBODY = -1


class Event(NamedTuple):
    """One access by an instruction: its line, the stamps of the lanes that ran it, and the ordinal of the first."""

    line: int
    stamps: Any  # all alike, or one each
    base: int


class Met(NamedTuple):
    """Threads of a block, with their stamps, that have called threadfence or changed something atomically."""

    event: int
    who: Ints
    stamps: Ints


def _met(asked: Ints, moments: Ints, others: Ints, theirs: Ints, sign: int) -> Bools:
    """For each asked thread, at its stamp: does another of its block come after it (``sign`` 1), or before (-1)?"""
    moments, theirs, barriers = sign * moments, sign * theirs, sign * (theirs >> BARRIER)
    warps, which = np.unique(others // WARP, return_inverse=True)
    last = np.full(len(warps), np.iinfo(np.int64).min)
    np.maximum.at(last, which, theirs)
    place = np.searchsorted(warps, asked // WARP).clip(max=len(warps) - 1)
    in_warp = (warps[place] == asked // WARP) & (last[place] > moments)
    found: Bools = np.isin(asked, others) | (sign * (sign * moments >> BARRIER) < barriers.max()) | in_warp
    return found


class Log:
    def __init__(self, lanes_per_block: int) -> None:
        self.lanes_per_block = lanes_per_block
        self.events: list[Event] = []
        self._alike = np.zeros(0, np.int64)  # the events' stamps where all lanes have the same, else -1
        # By block: fences that no atomic operation has come after; others, each with the event of the atomic
        # operation that tells others what came before; and atomic operations that may have been told.
        self._fences: defaultdict[int, list[Met]] = defaultdict(list)
        self.released: defaultdict[int, list[tuple[Met, int]]] = defaultdict(list)
        self._acquired: defaultdict[int, list[Met]] = defaultdict(list)

    def add(self, line: int, stamps: Any, base: int) -> int:
        last = self.events[-1] if self.events else None
        if last is None or (last.line, last.base) != (line, base) or last.stamps is not stamps:
            self.events.append(Event(line, stamps, base))
        return len(self.events) - 1

    def fence(self, who: Ints, stamps: Any) -> None:
        for block, own, moments in self._by_block(who, stamps):
            self._fences[block].append(Met(len(self.events) - 1, own, moments))

    def meet(self, who: Ints, stamps: Any, event: int) -> None:
        if not (self._fences or self.released):
            return
        for block, own, moments in self._by_block(who, stamps):
            acquired = self._acquired[block]
            if acquired and np.array_equal(acquired[-1].who, own) and np.array_equal(acquired[-1].stamps, moments):
                acquired.pop()  # as in a loop that waits
            acquired.append(Met(event, own, moments))
            fences, self._fences[block] = self._fences[block], []
            for fence in fences:
                before = _met(fence.who, fence.stamps, own, moments, 1)
                told, left = (Met(fence.event, fence.who[one], fence.stamps[one]) for one in (before, ~before))
                if count_nonzero(before):
                    self.released[block].append((told, event))
                if not before.all():
                    self._fences[block].append(left)

    def _by_block(self, who: Ints, stamps: Any) -> Iterator[tuple[int, Ints, Ints]]:
        blocks, stamps = who // self.lanes_per_block, np.broadcast_to(np.asarray(stamps), who.shape)
        for block in np.unique(blocks).tolist():
            own = blocks == block
            yield block, who[own], stamps[own]

    def stamps(self, events: Ints, who: Ints) -> Ints:
        """The stamps that threads had in events; of a thread of blocks that ran at another time, anything."""
        new = self.events[len(self._alike) :]
        alike = [-1 if isinstance(event.stamps, np.ndarray) else event.stamps for event in new]
        self._alike = np.append(self._alike, np.array(alike, np.int64))
        found: Ints = self._alike[events]
        own = np.flatnonzero(found < 0)
        for event in np.unique(events[own]).tolist():
            chosen = own[events[own] == event]
            found[chosen] = self.events[event].stamps.take(who[chosen] - self.events[event].base, mode="clip")
        return found

    def handed_over(self, first: Ints, then: Ints, events: Ints, second: Ints, now: Ints) -> Bools:
        """Did the ``first`` threads let others see what they did in events, and have the ``second`` looked since? As
        a sum's last block does: write, threadfence, atomic add; atomic add, read; with a barrier between two of these
        that are not of one thread. Within a block it is a lock, given back before another thread takes it."""
        found = np.zeros(len(first), np.bool_)
        pairs = np.stack((first, second)) // self.lanes_per_block
        for one, other in np.unique(pairs, axis=1).T.tolist():
            own = np.flatnonzero((pairs[0] == one) & (pairs[1] == other))
            looked = np.full(len(own), _NOBODY)
            for met in self._acquired.get(other, ()):
                looked[_met(second[own], now[own], met.who, met.stamps, -1)] = met.event
            for fence, event in self.released.get(one, ()):
                told = (events[own] <= fence.event) & ((event < looked) if one == other else (event <= looked))
                if count_nonzero(told):
                    found[own] |= told & _met(first[own], then[own], fence.who, fence.stamps, 1)
        return found


class TraceError(RuntimeError):
    """The kernel does what the tracer does not know, or cannot be run at all."""


class MistakeError(TraceError):
    """The kernel does what no GPU does as it is meant: ``line`` is the kernel's."""

    line: int | None = None


class Mask:
    """The lanes that execute. The same object means the same lanes."""

    def __init__(self, bits: Bools, count: int | None = None) -> None:
        self.bits = bits
        self.count = int(count_nonzero(bits)) if count is None else count

    @cached_property
    def warps(self) -> int:
        return int(count_nonzero(self.bits.reshape(-1, WARP).any(axis=1)))


@dataclass(frozen=True)
class Launch:
    """``bounds`` are a kernel's launch_bounds: threads, resident blocks, blocks of a cluster along x."""

    function: Callable[..., Any]
    grid: Point
    block: Point
    shared_bytes: int
    arguments: tuple[Any, ...]
    bounds: tuple[int, ...] = ()

    @property
    def cluster(self) -> int:
        return self.bounds[2] if len(self.bounds) > 2 else 1

    def has(self, block: Point) -> bool:
        return all(0 <= at < extent for at, extent in zip(block, self.grid, strict=True))


class State:
    """One launch of a kernel, and the blocks of it that run at once."""

    def __init__(self, home: str) -> None:
        """``home``: the file of the kernel, whose lines are reported."""
        self.home = home
        self.site = 0  # the line of that file from which a helper of another file is called
        self.depth = 0  # of calls
        self.spot = 0  # of the call that is made: tells the calls in a function's text apart
        self.cooperative = False  # does it have a barrier of the whole grid
        self.has_engines = False  # does it use what works beside its threads: wgmma, copies of boxes
        self.engines: Any = None  # then, of the blocks that run: a hopper.engines.Engines
        self.shared_storage: Any = None  # the class of arrays in shared memory
        self.constants: dict[int, Any] = {}  # host arrays that it names, by their id, which they keep
        self.shuffles = False  # do its threads give each other values
        self.stand_in: int | None = None  # of a launch that is run again: for integers that no thread gave
        self.doubts: dict[int, Fault] = {}  # by line, what is a fault if that makes a difference
        self.reversed = False  # of threads that write one element, does the first one win?

    def configure(self, launch: Launch, ledger: Ledger) -> None:
        self.launch, self.ledger = replace(launch, arguments=()), ledger  # which keeps nobody's arrays
        self.grid, self.block, self.cluster = launch.grid, launch.block, launch.cluster
        self.threads = math.prod(self.block)
        self.lanes_per_block = -(-self.threads // WARP) * WARP
        self.log = Log(self.lanes_per_block)
        self.ran: list[Ints] = []  # numbers of blocks, in the order in which they ran
        self.next_ordinal = 0
        self.numbers = np.zeros(0, np.int64)

    def begin(self, numbers: Ints) -> None:
        """The blocks with these numbers, x fastest, are the next to run."""
        if len(numbers) != len(self.numbers):
            size = len(numbers) * self.lanes_per_block
            self.lane_numbers = np.arange(size)
            self.block_number = self.lane_numbers // self.lanes_per_block
            thread = self.lane_numbers % self.lanes_per_block
            self.all = Mask(thread < self.threads)
            self.none = Mask(np.zeros(size, np.bool_), 0)
            self.thread_axes = self.axes(np.minimum(thread, self.threads - 1), self.block)
        self.numbers, self.blocks_at_once = numbers, len(numbers)
        self.ranks = numbers % self.cluster  # clusters are whole, and their blocks side by side
        self.first_ordinal = self.next_ordinal
        self.next_ordinal += len(self.lane_numbers)
        self.ran.append(numbers)
        self.mask = self.waiting = self.all  # the active lanes, and those of threads that have not returned
        # barriers that a thread has passed, above BARRIER bits of its syncwarps: one number, or one per lane
        self.stamps: Any = 0
        self.left = self.none.bits  # threads that had returned when their block passed its last barrier
        self.shared: dict[Any, Any] = {}  # arrays in shared memory: a View by place in the code
        self.sites: dict[Any, Any] = {}  # and of dynamic ones, by the place where a kernel asks for one
        self.copies: list[Any] = []  # under way to shared memory: each a races.Access, and its group by thread
        self.groups: Any = 0  # of copies that a thread has committed
        self.operands: dict[Any, Any] = {}  # of matrix instructions: registers and the matrices that they hold
        self.tainted: Bools | None = None  # lanes that may hold what they read where nothing had written
        self.sources: dict[tuple[int, str], Any] = {}  # what they read, by line and array's name: a views.Source
        self.unset: tuple[int, str] | None = None  # the line and words of the first integer read that nobody wrote
        self.branches = 0  # since then
        self.copied: Bools | None = None  # in a copy from element to element: lanes whose integer nobody wrote
        self.turning = 0  # the line of the loop that was begun last
        self.refused = 0  # times in a row that a compare-and-swap has changed nothing
        self.call_path: list[Any] = []
        self.absent: dict[int, Bools] = {}  # by line of a barrier: threads that did not come while others waited

    @staticmethod
    def axes(numbers: Any, extents: Point) -> tuple[Value, Value, Value]:
        x, y, z = extents
        return (numbers % x if x > 1 else 0), (numbers // x % y if y > 1 else 0), (numbers // (x * y) if z > 1 else 0)

    def thread_of(self, lane: int) -> Point:
        return self.axes(lane % self.lanes_per_block, self.block)

    def block_of(self, ordinal: int) -> Point:
        return self.axes(int(np.concatenate(self.ran)[ordinal // self.lanes_per_block]), self.grid)

    def here(self) -> tuple[Any, ...]:
        """The call that is being made: by function, or by the calls that lead to it where Numba writes it out."""
        return (*self.call_path, self.spot)

    def _kept(self, mask: Mask, bits: Bools) -> Mask:
        """What of a mask is in ``bits``, too: itself if all is, ``none`` itself if nothing is."""
        count = int(count_nonzero(bits))
        return self.none if not count else mask if count == mask.count else Mask(bits, count)

    def part(self, condition: Value) -> Mask:
        """The active lanes for which it holds; ``mask`` itself if all, ``none`` itself if none."""
        return self._kept(self.mask, self.mask.bits & condition)

    def without(self, mask: Mask, *gone: Mask) -> Mask:
        for others in gone:
            if others is not self.none and mask is not self.none:
                mask = self._kept(mask, mask.bits & ~others.bits)
        return mask

    def union(self, a: Mask, b: Mask) -> Mask:
        return b if a is self.none else a if b is self.none else Mask(a.bits | b.bits)

    def among(self, wrong: Bools | None) -> Bools:
        return self.mask.bits if wrong is None else self.mask.bits & ~wrong

    def error(self, line: int, text: str) -> MistakeError:
        found = MistakeError(f"line {line}: {text}")
        found.line = self.site or line
        return found

    def unknown(self, line: int, text: str) -> TraceError:
        return TraceError(f"line {line}: {text}")

    def fault(
        self, kind: str, line: int, array: str, text: str, lanes: Any = None, *, lane: int | None = None,
        count: int = 0, cause: str = "", look_at: str = "",
    ) -> None:  # fmt: skip
        """Report a fault of those of ``lanes`` that are active (default: all), if any, told of the first; or of
        ``lane``, be it active or not. ``count``: of how many lanes or words, if not of as many as ``lanes``."""
        if lane is None:
            lanes = self.mask.bits if lanes is None or uniform(lanes) else lanes & self.mask.bits
            lane = int(np.argmax(lanes))
            if not lanes[lane]:
                return
        count = count or (1 if lanes is None else int(count_nonzero(lanes)))
        self.ledger.fault(self.told(kind, line, array, text, lane, look_at), count, cause)

    def told(self, kind: str, line: int, array: str, text: str, lane: int, look_at: str = "") -> Fault:
        thread, block = self.thread_of(lane), self.block_of(lane + self.first_ordinal)
        return Fault(kind, text, line, look_at=look_at, array=array, thread=thread, block=block)

    def first(self, value: Any, lanes: Any) -> int:
        """The value of the first of the active lanes that are named."""
        lane = int(np.argmax(lanes & self.mask.bits))
        return int(np.broadcast_to(value, self.mask.bits.shape)[lane])
