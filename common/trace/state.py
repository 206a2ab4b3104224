"""The threads that run at once: which of them are active, which barriers each has passed, and how a fault of one is
reported.

Blocks are padded to whole warps, and the lanes of several blocks lie one after another. What differs between threads
is an array with one element per lane. A thread's *ordinal* tells it from all others of the launch: the number of its
block, in the order in which blocks run, times the lanes of a block, plus its place in the block.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from common.catalog.limits import LaunchLimitError
from common.explain.faults import Fault
from common.trace.cost import WARP, Bools, Ints, Ledger
from common.trace.events import Log
from common.trace.values import Value, uniform

Point = tuple[int, int, int]


class TraceError(RuntimeError):
    """The kernel does what the tracer does not know, or cannot be run at all."""


class MistakeError(TraceError):
    """The kernel does what no GPU does as it is meant: ``line`` is the kernel's."""

    line: int | None = None


class Mask:
    """The lanes that execute. The same object means the same lanes."""

    __slots__ = ("_warps", "bits", "count")

    def __init__(self, bits: Bools, count: int | None = None) -> None:
        self.bits = bits
        self.count = int(np.count_nonzero(bits)) if count is None else count
        self._warps: int | None = None

    @property
    def warps(self) -> int:
        """Warps with an active lane."""
        if self._warps is None:
            self._warps = int(np.count_nonzero(self.bits.reshape(-1, WARP).any(axis=1)))
        return self._warps


class State:
    """One launch of a kernel, and the blocks of it that run at once.

    ``mask``     the active lanes
    ``waiting``  the lanes of threads that have not returned
    ``stamps``   barriers that a thread has passed, above :data:`common.trace.events.BARRIER` bits of its syncwarps:
                 one number for all threads, or one per lane
    ``tainted``  lanes that may hold what they read where nothing had written; None: no lane
    """

    mask: Mask
    waiting: Mask
    stamps: Any
    tainted: Bools | None

    def __init__(self, home: str) -> None:
        """``home``: the file of the kernel, whose lines are reported."""
        self.home = home
        self.site = 0  # the line of that file from which a helper of another file is called
        self.depth = 0  # of calls
        self.spot = 0  # of the call that is made: tells the calls in a function's text apart
        self.has_engines = False  # does it use what works beside its threads: wgmma, copies of boxes
        self.engines: Any = None  # then, of the blocks that run: a common.trace.hopper.engines.Engines
        self.shared_storage: Any = None  # the class of arrays in shared memory
        self.constants: dict[int, Any] = {}  # host arrays that it names, by their id, which they keep
        self.reversed = False  # of threads that write one element, does the first one win?

    def configure(
        self, grid: Point, block: Point, ledger: Ledger, shared_bytes: int = 0, bounds: tuple[int, ...] = ()
    ) -> None:
        """Begin a launch. ``bounds``: threads of a block, resident blocks, and blocks of a cluster along x."""
        self.grid, self.block, self.ledger, self.shared_bytes = grid, block, ledger, shared_bytes
        self.bounds = (bounds[0], bounds[1]) if len(bounds) > 1 else None
        self.cluster = bounds[2] if len(bounds) > 2 else 1
        if grid[0] % self.cluster:
            raise LaunchLimitError(f"grid {grid}: x must be a multiple of the {self.cluster} blocks of a cluster")
        self.threads = block[0] * block[1] * block[2]
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
        self.ranks = numbers % self.cluster
        local = {number: i for i, number in enumerate(numbers.tolist())} if self.cluster > 1 else {}
        self.peers = [  # by block: all blocks of its cluster
            [local[number - number % self.cluster + rank] for rank in range(self.cluster)] if local else [i]
            for i, number in enumerate(numbers.tolist())
        ]
        self.first_ordinal = self.next_ordinal
        self.next_ordinal += len(self.lane_numbers)
        self.ran.append(numbers)
        self.mask = self.waiting = self.all
        self.stamps = 0
        self.shared: dict[Any, Any] = {}  # arrays in shared memory: a common.trace.views.View by place in the code
        self.copies: list[Any] = []  # under way to shared memory: each a common.trace.copies.Copy
        self.groups: Any = 0  # of copies that a thread has committed
        self.tainted = None
        self.sources: list[Any] = []  # what they read: each a common.trace.unwritten.Source
        self.unset: tuple[int, str] | None = None  # the line and words of the first integer read that nobody wrote
        self.branches = 0  # since then
        self.call_path: list[Any] = []
        self.absent: dict[int, Bools] = {}  # by line of a barrier: threads that did not come while others waited
        self.inside: dict[tuple[int, int], Any] = {}  # indices that were within an extent, kept alive
        self.scaled: dict[tuple[int, int], Any] = {}  # indices, kept alive, and what they are times a stride

    @staticmethod
    def axes(numbers: Any, extents: Point) -> list[Value]:
        """The coordinates of threads or blocks with these numbers."""
        x, y, _ = extents
        parts = [numbers % x, numbers // x % y, numbers // (x * y)]
        return [0 if extent == 1 else part for part, extent in zip(parts, extents, strict=True)]

    # --- who a lane is ---

    def thread_of(self, lane: int) -> Point:
        thread = lane % self.lanes_per_block
        x, y, _ = self.block
        return thread % x, thread // x % y, thread // (x * y)

    def block_of(self, ordinal: int) -> Point:
        number, x, y = ordinal // self.lanes_per_block, *self.grid[:2]
        at = int(np.concatenate(self.ran)[number])
        return at % x, at // x % y, at // (x * y)

    def ordinals(self, lanes: Bools | Ints) -> Ints:
        return self.lane_numbers[lanes] + self.first_ordinal

    def stamps_of(self, ordinals: Ints) -> Any:
        """The stamps that threads of the running blocks have now; of others, anything."""
        if not isinstance(self.stamps, np.ndarray):
            return self.stamps
        return self.stamps.take(ordinals - self.first_ordinal, mode="clip")

    def here(self) -> tuple[Any, ...]:
        """The call that is being made, as Numba tells shared arrays apart: by function, or by the calls that lead to
        it where it writes the function out."""
        return (*self.call_path, self.spot)

    # --- masks ---

    def part(self, condition: Value) -> Mask:
        """The active lanes for which it holds; ``mask`` itself if all, ``none`` itself if none."""
        bits = self.mask.bits & condition
        count = int(np.count_nonzero(bits))
        return self.none if not count else self.mask if count == self.mask.count else Mask(bits, count)

    def without(self, mask: Mask, *gone: Mask) -> Mask:
        left = mask
        for others in gone:
            if others is not self.none and left is not self.none:
                bits = left.bits & ~others.bits
                count = int(np.count_nonzero(bits))
                left = self.none if not count else left if count == left.count else Mask(bits, count)
        return left

    def union(self, a: Mask, b: Mask) -> Mask:
        return b if a is self.none else a if b is self.none else Mask(a.bits | b.bits)

    def among(self, wrong: Bools | None) -> Bools:
        """The active lanes but for those whose index is wrong."""
        return self.mask.bits if wrong is None else self.mask.bits & ~wrong

    # --- what is reported ---

    def error(self, line: int, text: str) -> MistakeError:
        found = MistakeError(f"line {line}: {text}")
        found.line = self.site or line
        return found

    def unknown(self, line: int, text: str) -> TraceError:
        return TraceError(f"line {line}: {text}")

    def fault(
        self, kind: str, line: int, array: str, text: str, lanes: Any = None, lane: int | None = None, count: int = 0,
        cause: str = "", look_at: str = "",
    ) -> None:  # fmt: skip
        """Report a fault of ``lanes`` (default: the active ones), told of the first of them, or of ``lane``.

        ``count``: how many lanes or words it concerns, if not as many as ``lanes``. ``cause``: see
        :meth:`common.trace.cost.Ledger.fault`.
        """
        if lanes is None or uniform(lanes):
            lanes = self.mask.bits
        lanes = lanes & self.mask.bits if lane is None else lanes
        lane = int(np.argmax(lanes)) if lane is None else lane
        count = count or int(np.count_nonzero(lanes))
        self.fault_by(kind, line, array, text, lane + self.first_ordinal, count, cause, look_at)

    def fault_by(
        self, kind: str, line: int, array: str, text: str, ordinal: int, count: int, cause: str = "",
        look_at: str = "",
    ) -> None:  # fmt: skip
        """Report a fault of a thread of the launch."""
        thread, block = self.thread_of(ordinal), self.block_of(ordinal)
        fault = Fault(kind, text, line, look_at=look_at, array=array, thread=thread, block=block)
        self.ledger.fault(fault, count, cause)

    def fault_of(self, lane: int, kind: str, line: int, array: str, text: str, cause: str = "") -> None:
        """Report a fault of one lane."""
        self.fault(kind, line, array, text, lane=lane, count=1, cause=cause)

    def first(self, value: Any, lanes: Any) -> int:
        """The value of the first of the active lanes that are named."""
        lane = int(np.argmax(np.broadcast_to(lanes, self.mask.bits.shape) & self.mask.bits))
        return int(np.broadcast_to(value, self.mask.bits.shape)[lane])
