"""Hopper's asynchronous machine in the simulator: barriers that count bytes, the copy engine, wgmma, clusters.

What the plain halves of ``lessons/hopper.py`` call. Everything is as late as it may be: a copy arrives when no thread
can go on without one, in an order that changes from launch to launch; wgmma reads its operands, and a store its tile,
when a thread waits for them. Until then nobody finds a number there: neither in a tile, nor in a sum. Beside that,
who knows of what is kept (:mod:`common.microscope.order`), so that a wait or a fence that is missing is found in any
order: it ends the kernel, and the error names the line.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from common.book import occupancy
from common.microscope import boxes
from common.microscope.order import CELL, NEVER, Cells, Clocks, Row, Seen, joined

Array = NDArray[Any]

WARPGROUP = 128
_MOST_BYTES = (1 << 20) - 1  # that a phase of a barrier counts
_FEW = 16  # bytes that are looked at one by one
_NOTHING = 0x7FF9  # two of it are a NaN of float32, each is one of float16


class AsynchronousError(RuntimeError):
    """A kernel uses the asynchronous machine in a way that no GPU promises anything of."""


class DeadlockError(AsynchronousError):
    """Threads wait for what never comes."""


class NotAwaitedError(AsynchronousError):
    """What a copy or a wgmma is to bring is used before it was waited for."""


class UnwrittenError(AsynchronousError):
    """What nobody wrote is read."""


class RefilledError(AsynchronousError):
    """Memory is written while others may still read or write it."""


class ProxyFenceError(AsynchronousError):
    """What a thread wrote to shared memory is read asynchronously without fence_async."""


class WgmmaOrderError(AsynchronousError):
    """Sums are used while they belong to the matrix unit, or given to it without wgmma_fence."""


class LeftError(AsynchronousError):
    """A block of a cluster may end before others are done with its shared memory."""


class WarpgroupError(AsynchronousError):
    """The 128 threads of a warpgroup do not come to one wgmma."""


class DescriptorError(AsynchronousError):
    """A descriptor says of the tiles what they are not."""


class BarrierError(AsynchronousError):
    """A barrier is used before it is there, or counts what it cannot."""


class OperandError(AsynchronousError):
    """An instruction is given what it does not take."""


class Parked(NamedTuple):
    """Why a thread cannot go on: the call and line where it waits, and what for."""

    call: str
    line: int
    wants: Callable[[], str]
    urgent: bool = False


@dataclass(eq=False)
class _Barrier:
    """An mbarrier. ``bytes`` are those that its phase still waits for; negative if more came than it was told of."""

    name: str
    rank: int
    arrivals: int
    made: tuple[int, int, int]  # the column and tag of its publication, and its line
    column: int  # of what copies bring in its phases
    phases: int  # of the phases alone
    pending: int = 0
    phase: int = 0
    bytes: int = 0
    expected: int = 0
    expect_line: int = 0
    told: int = 0  # bytes, there
    gathered: Row | None = None
    done: Row | None = None
    waiting: list[Any] = field(default_factory=list)

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


@dataclass(eq=False)
class _Copy:
    """A box on its way to a block's tiles."""

    call: str
    line: int
    rank: int
    barrier: _Barrier
    phase: int
    places: Array  # elements of the tiles
    itemsize: int
    cells: slice
    read: Callable[[], Array]
    size: int
    clock: Row


@dataclass(eq=False)
class _Product:
    """A wgmma of a warpgroup: what its threads have told of it so far."""

    call: str
    place: tuple[Any, int]
    line: int
    given: tuple[Any, ...]  # i, a, b, N, and how many bytes an element of the tiles has
    left: Array | None  # None: A is in registers
    right: Array
    clock: Row
    parts: list[Any]  # by thread of the warpgroup: the sums, which are in no register now
    fragments: list[Any]  # of A, if it is in registers: where they are, and what they held


@dataclass(eq=False)
class _Group:
    products: list[_Product] = field(default_factory=list)
    committed: int = 0
    done: bool = False


@dataclass(eq=False)
class _Warpgroup:
    """Four warps of a block: their groups of wgmma, and the column of the unit that reads for them."""

    rank: int
    number: int
    column: int
    groups: list[_Group] = field(default_factory=list)
    waiting: list[Any] = field(default_factory=list)


@dataclass(eq=False)
class _Flight:
    """Sums that belong to the matrix unit: what they hold, and the last group that adds to them."""

    array: Any
    raw: Array
    start: int
    stop: int
    values: Array
    group: int
    call: str
    line: int


@dataclass(eq=False)
class _Store:
    """A tile on its way to an array: ``values`` once it is read."""

    line: int
    rank: int
    places: Array
    itemsize: int
    write: Callable[[Array], None]
    values: Array | None = None


@dataclass(eq=False)
class _Own:
    """What one thread has under way."""

    groups: int = 0  # of wgmma: committed
    waited: int = 0
    open: int = 0  # products since the last commit
    last: tuple[str, int] = ("", 0)
    fenced: list[tuple[Array, Array]] | None = None  # its arrays at the last wgmma_fence, and what they held
    flights: list[_Flight] = field(default_factory=list)
    stores: list[list[_Store]] = field(default_factory=lambda: [[]])
    stored: int = 0  # groups of stores that have been read and written
    column: int | None = None  # of the engine that reads for it
    registers: int | None = None


def _expects(barrier: _Barrier) -> str:
    if not barrier.expect_line:
        return "no barrier_expect tells of bytes,"
    return f"barrier_expect at line {barrier.expect_line} tells of {barrier.told} bytes,"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _plain(array: Any) -> Array:
    """An array as NumPy has it."""
    found: Array = getattr(array, "_array", getattr(array, "_ary", array))
    return found


class Machine:
    """What belongs to the blocks of a cluster as long as they run. ``turn`` numbers the launch."""

    def __init__(self, blocks: list[Any], turn: int, bounds: tuple[int, ...] | int | None) -> None:
        self.blocks, self.size = blocks, blocks[0].size
        self.module = blocks[0].module
        self._file = blocks[0].function.__code__.co_filename
        self.clocks = Clocks(len(blocks) * self.size)
        self.cells = [Cells(block.allocations.bytes.size, self.clocks) for block in blocks]
        self._turn, self._delivered = turn, 0
        self._flying: list[_Copy] = []
        self._copied: dict[tuple[int, int], tuple[_Copy, int]] = {}  # the last by barrier
        self._arrays: dict[int, Any] = {}
        self._tiles: dict[tuple[int, int], tuple[Any, int]] = {}  # known to be tiles, by rank: with itemsize
        self._barriers: dict[tuple[int, Any, int], _Barrier] = {}
        self._fences: dict[int, int] = {}
        self._published: dict[int, int] = {}
        self._warpgroups: dict[tuple[int, int], _Warpgroup] = {}
        self._own: dict[int, _Own] = defaultdict(_Own)
        self._remote: dict[tuple[int, int], tuple[int, int]] = {}
        self._in_cluster: list[Any] = []
        self._bounds = bounds

    # --- where ---

    def _here(self) -> tuple[Any, int, FrameType]:
        """The block that runs, the thread's number in the cluster, and the kernel's frame."""
        block = self.module.block
        return block, block.rank * self.size + self.module.thread.number, self._frame(sys._getframe(2))

    def _frame(self, inner: FrameType) -> FrameType:
        """The innermost frame, from this one outwards, in the kernel's own file, whose lines readers know."""
        frame: FrameType | None = inner
        while frame is not None:
            if frame.f_code.co_filename == self._file:
                return frame
            frame = frame.f_back
        return inner

    def heard(self, block: Any, number: int) -> tuple[int, int, Row]:
        """Where others hear of what a thread of a block does now, and what it has heard itself."""
        thread = block.rank * self.size + number
        return thread, int(self.clocks.rows[thread, thread]), self.clocks.rows[thread]

    def rank(self) -> int:
        return int(self.module.block.rank)

    def _require_tiles(self, call: str, line: int, tiles: Any) -> int:
        """Bytes of an element of the tiles. Raises OperandError for another array."""
        rank = self.module.block.rank
        known = self._tiles.get((rank, id(tiles)))
        if known and known[0] is tiles:
            return known[1]
        memory = self.module.block.allocations.bytes
        raw = _plain(tiles)
        if not isinstance(raw, np.ndarray) or raw.ndim != 1 or not raw.size or raw.ctypes.data != memory.ctypes.data:
            raise OperandError(f"{call} at line {line}: tiles must be half_tiles() or float_tiles(), all of the "
                               "dynamic shared memory that the launch asks for")  # fmt: skip
        self._tiles[rank, id(tiles)] = tiles, raw.itemsize
        return raw.itemsize

    def tiles(self, dtype: Any) -> Any:
        return self.module.block.allocations.tiles(dtype, self)

    def descriptor(self, tiles: Any, offset: Any, leading: Any, stride: Any) -> Any:
        line = self._here()[2].f_lineno
        itemsize = self._require_tiles("descriptor", line, tiles)
        try:
            return np.uint64(boxes.encoded(int(offset) * itemsize, int(leading), int(stride)))
        except ValueError as error:
            raise DescriptorError(f"descriptor at line {line}: {error}") from None

    # --- ordinary accesses to the tiles ---

    def touched(self, name: Callable[[], str], start: int, stop: int, same: Callable[[], bool] | None = None) -> None:
        """The current thread reads bytes start to stop of its block's tiles, or writes: the ``same`` as is there?"""
        block = self.module.block
        cells, thread = self.cells[block.rank], block.rank * self.size + self.module.thread.number
        line = self._frame(sys._getframe(1)).f_lineno
        write, where = same is not None, slice(start // CELL, -(-stop // CELL))
        fence = self._fence(thread) if write else 0
        row = self.clocks.rows[thread]
        if write and stop - start <= _FEW and cells.own(where, fence, thread, row):
            cells.write(where, fence, row.item(fence) + 1, line, thread, row)
            return
        if not write and stop - start <= _FEW and cells.there(where, row):
            cells.note_read(where, thread, row, line)
            return
        copied = cells.not_copied(where, row)
        if copied and write:
            raise RefilledError(f"{name()} is written at line {line}, while the copy of line {copied.line} to it may "
                                "be under way")  # fmt: skip
        if copied:
            self._not_there(
                f"thread {block.place(self.module.thread.number)} at line {line} reads in {name()}", copied
            )
        wrote = cells.unwritten_by_threads(where, row)
        if wrote and not (same and same()):
            self._raced(name(), "written", wrote, "written" if write else "read", line)
        if not write:
            cells.note_read(where, thread, row, line)
            return
        unit = cells.unread_by_units(where, row)
        if unit is not None:
            raise RefilledError(
                f"{name()} is written at line {line}, while what line {unit} started may still read it"
            )
        read = cells.unread_by_threads(where, row)
        if read:
            self._raced(name(), "read", read, "written", line)
        cells.write(where, fence, row.item(fence) + 1, line, thread, row)

    def _raced(self, name: str, before: str, other: tuple[int, int], now: str, line: int) -> NoReturn:
        first, thread = other
        rank, number = divmod(thread, self.size)
        raise RefilledError(f"{name} is {now} at line {line}, and {before} at line {first} by thread "
                            f"{self.blocks[rank].place(number)}, and no barrier lies between")  # fmt: skip

    def under_way(self, start: int, stop: int) -> None:
        """A copy of the current thread's own, of the kind that wait_group waits for, has begun."""
        cells = self.cells[self.module.block.rank]
        cells.tag[start // CELL : -(-stop // CELL)] = NEVER

    def _fence(self, thread: int) -> int:
        if thread not in self._fences:
            self._fences[thread] = self.clocks.column()
        return self._fences[thread]

    def fence_async(self) -> None:
        block = self.module.block
        thread = block.rank * self.size + self.module.thread.number
        self.clocks.rows[thread, self._fence(thread)] += 1

    # --- barriers of the block and of the cluster ---

    def synced(self, block: Any) -> None:
        """All threads of a block have waited for each other."""
        first = block.rank * self.size
        self.clocks.meet(np.arange(first, first + self.size))

    def lanes_synced(self, block: Any, numbers: list[int]) -> None:
        """These threads of a block have."""
        self.clocks.meet(np.array(numbers) + block.rank * self.size)

    def cluster_sync(self) -> None:
        block, thread, frame = self._here()
        self._in_cluster.append((block, self.module.thread, thread))
        alive = sum(one.size - len(one.ended) for one in self.blocks)
        if len(self._in_cluster) < alive:
            block.park(Parked("cluster_sync", frame.f_lineno, self._missing_in_cluster))
        else:
            self._cluster_met()

    def _missing_in_cluster(self) -> str:
        alive = sum(one.size - len(one.ended) for one in self.blocks)
        return f"{alive - len(self._in_cluster)} other threads of the cluster, which do not come"

    def _cluster_met(self) -> None:
        self.clocks.meet(np.array([thread for _, _, thread in self._in_cluster]))
        for block, thread, _ in reversed(self._in_cluster):
            block.wake(thread)
        self._in_cluster.clear()

    # --- barriers that count ---

    def barrier_array(self, count: Any) -> Any:
        """An array of barriers, known by the place that makes it, which is the same in all blocks of a cluster."""
        allocations = self.module.block.allocations
        array = allocations.setdefault(None, np.empty(int(count), np.int64))
        self._arrays[id(array)] = next(place for place, one in allocations.items() if one is array)
        return array

    def _barrier(self, call: str, bars: Any, i: Any, thread: int, frame: FrameType, rank: int) -> _Barrier:
        """The barrier, which this thread must know to be made. Raises BarrierError."""
        place, line = self._of(call, bars, i, frame), frame.f_lineno
        found = self._barriers.get((rank, place, int(i)))
        elsewhere = "" if rank == self.module.block.rank else f" of block {rank} of the cluster"
        if found is None:
            wait = ": cluster_sync() comes before it" if elsewhere else ""
            raise BarrierError(f"{call} at line {line}: {_named(bars, frame)}[{int(i)}]{elsewhere} is used before "
                               f"barrier_init{wait}")  # fmt: skip
        column, tag, made = found.made
        row = self.clocks.rows[thread]
        if row[column] < tag:
            maker = self._maker(column)
            if self.clocks.rows[maker, column] < tag:
                missing = f"publish_barriers() does not follow its barrier_init at line {made}"
            else:
                what = "cluster_sync()" if elsewhere else "a barrier of the block"
                missing = f"this thread has not come to {what} since its barrier_init at line {made}"
            raise BarrierError(
                f"{call} at line {line}: {found.name}{elsewhere} is used before all know of it: {missing}"
            )
        return found

    def _of(self, call: str, bars: Any, i: Any, frame: FrameType) -> Any:
        if id(bars) not in self._arrays:
            raise OperandError(f"{call} at line {frame.f_lineno}: {_named(bars, frame)} is no barrier_array()")
        if not 0 <= i < len(bars):
            raise IndexError(f"{_named(bars, frame)}[{int(i)}]: index {int(i)} is out of bounds: "
                             f"{_named(bars, frame)} has shape ({len(bars)},)")  # fmt: skip
        return self._arrays[id(bars)]

    def _maker(self, column: int) -> int:
        return next(thread for thread, own in self._published.items() if own == column)

    def barrier_init(self, bars: Any, i: Any, arrivals: Any) -> None:
        block, thread, frame = self._here()
        place = self._of("barrier_init", bars, i, frame)
        name, key = f"{_named(bars, frame)}[{int(i)}]", (block.rank, place, int(i))
        if key in self._barriers:
            raise BarrierError(f"barrier_init at line {frame.f_lineno}: {name} was made at line "
                               f"{self._barriers[key].made[2]} already")  # fmt: skip
        if not 1 <= arrivals <= _MOST_BYTES:
            raise BarrierError(f"barrier_init at line {frame.f_lineno}: {name} is to wait for {int(arrivals)} "
                               f"arrivals: must be from 1 to {_MOST_BYTES}")  # fmt: skip
        column = self._published.get(thread)
        if column is None:
            column = self._published[thread] = self.clocks.column()
        made = column, int(self.clocks.rows[thread, column]) + 1, frame.f_lineno
        columns = self.clocks.column(of_barrier=True), self.clocks.column(of_phases=True)
        self._barriers[key] = _Barrier(name, block.rank, int(arrivals), made, *columns, int(arrivals))

    def publish_barriers(self) -> None:
        _, thread, _ = self._here()
        if thread in self._published:
            self.clocks.rows[thread, self._published[thread]] += 1

    def barrier_expect(self, bars: Any, i: Any, count: Any) -> None:
        block, thread, frame = self._here()
        barrier = self._barrier("barrier_expect", bars, i, thread, frame, block.rank)
        if count < 0 or barrier.bytes + count > _MOST_BYTES:
            raise BarrierError(f"barrier_expect at line {frame.f_lineno}: {barrier.name} is to wait for {int(count)} "
                               f"bytes: a phase counts up to {_MOST_BYTES}")  # fmt: skip
        barrier.bytes += int(count)
        barrier.expected += int(count)
        barrier.expect_line, barrier.told = frame.f_lineno, int(count)
        self._arrive("barrier_expect", barrier, thread, frame.f_lineno)

    def barrier_arrive(self, bars: Any, i: Any) -> None:
        block, thread, frame = self._here()
        barrier = self._barrier("barrier_arrive", bars, i, thread, frame, block.rank)
        self._arrive("barrier_arrive", barrier, thread, frame.f_lineno)

    def barrier_arrive_at(self, bars: Any, i: Any, rank: Any) -> None:
        block, thread, frame = self._here()
        self._require_rank("barrier_arrive_at", int(rank), frame.f_lineno)
        barrier = self._barrier("barrier_arrive_at", bars, i, thread, frame, int(rank))
        if rank != block.rank:
            self._reach("barrier_arrive_at", thread, int(rank), frame.f_lineno)
        self._arrive("barrier_arrive_at", barrier, thread, frame.f_lineno)

    def _require_rank(self, call: str, rank: int, line: int) -> None:
        if not 0 <= rank < len(self.blocks):
            raise OperandError(f"{call} at line {line}: there is no block {rank} in a cluster of {len(self.blocks)}")

    def _reach(self, call: str, thread: int, rank: int, line: int) -> None:
        """A thread of another block uses a block's shared memory, which must be there until that is done."""
        self._require_alive(call, rank, line)
        self._remote[thread, rank] = int(self.clocks.rows[thread, thread]), line

    def _require_alive(self, call: str, rank: int, line: int) -> None:
        if len(self.blocks[rank].ended) == self.size:
            raise LeftError(f"{call} at line {line} reaches block {rank} of the cluster, which has ended: "
                                    "cluster_sync() lets no block leave before the others are done")  # fmt: skip

    def _arrive(self, call: str, barrier: _Barrier, thread: int, line: int) -> None:
        if barrier.pending == 0:
            had = _counted(barrier.arrivals, "arrival")
            raise BarrierError(f"{call} at line {line}: phase {barrier.phase} of {barrier.name} has had its {had}, "
                               f"and waits for {barrier.bytes} bytes")  # fmt: skip
        known = self.clocks.rows[thread, barrier.phases]
        if known < barrier.phase:
            raise BarrierError(f"{call} at line {line} is an arrival too many at {barrier.name}, or one too early: "
                               f"it counts in phase {barrier.phase}, and this thread has not waited until phase "
                               f"{barrier.phase - 1} was complete, nor for one who has")  # fmt: skip
        barrier.gathered = self.clocks.hand_on(thread, barrier.gathered)
        barrier.pending -= 1
        self._complete(barrier)

    def _complete(self, barrier: _Barrier) -> None:
        if barrier.pending or barrier.bytes:
            return
        barrier.phase += 1
        barrier.pending, barrier.expected = barrier.arrivals, 0
        assert barrier.gathered is not None
        barrier.done = barrier.gathered.copy()
        barrier.done[[barrier.column, barrier.phases]] = barrier.phase
        for block, thread in barrier.waiting:
            block.wake(thread)
        barrier.waiting.clear()

    def barrier_wait(self, bars: Any, i: Any, parity: Any) -> None:
        block, thread, frame = self._here()
        barrier = self._barrier("barrier_wait", bars, i, thread, frame, block.rank)
        if parity not in (0, 1):
            raise OperandError(f"barrier_wait at line {frame.f_lineno}: the parity is {int(parity)}: must be 0 or 1")
        while barrier.phase % 2 == parity:
            phase = barrier.phase
            barrier.waiting.append((block, self.module.thread))

            def wants(barrier: _Barrier = barrier, phase: int = phase) -> str:
                return f"phase {phase} (parity {phase % 2}) of {barrier.name}, of which {barrier.wants()}"

            block.park(Parked("barrier_wait", frame.f_lineno, wants, bool(barrier.bytes)))
        if barrier.done is not None:
            self.clocks.hear(thread, barrier.done)

    # --- the copy engine ---

    def load(self, call: str, tiles: Any, i: Any, one: Any, bars: Any, b: Any, at: Any, mask: Any = None) -> None:
        """Start a copy of the map's box to tiles[i:] of this block, or of those in ``mask``."""
        block, thread, frame = self._here()
        line, itemsize = frame.f_lineno, self._require_tiles(call, frame.f_lineno, tiles)
        kind = "im2col" if "im2col" in call else "tiled"
        rows, columns, read = self._box(call, line, one, kind, itemsize, at)
        start = self._require_inside(call, line, tiles, int(i), itemsize, rows * columns)
        ranks = [block.rank]
        if mask is not None:
            ranks = [rank for rank in range(16) if int(mask) >> rank & 1]
            for rank in ranks or [-1]:
                self._require_rank(call, rank, line)
        places = boxes.tile(start, rows, columns, itemsize)
        for rank in ranks:
            barrier = self._barrier(call, bars, b, thread, frame, rank)
            self._require_alive(call, rank, line)
            size, clock = rows * columns * itemsize, self.clocks.phases(thread)
            cells = slice(start // CELL, (start + size) // CELL)
            self._require_free(call, line, rank, cells, thread)
            self.cells[rank].fill(cells, barrier.column, barrier.phase + 1, line, _cells(places, itemsize))
            self.blocks[rank].allocations.bytes.view(np.uint16)[cells] = _NOTHING
            self._flying.append(
                _Copy(call, line, rank, barrier, barrier.phase, places, itemsize, cells, read, size, clock)
            )
            self._copied[rank, id(barrier)] = self._flying[-1], barrier.phase + 1

    def _box(
        self, call: str, line: int, one: Any, kind: str, itemsize: int, at: Any
    ) -> tuple[int, int, Callable[[], Array]]:
        """Rows and columns of a map's box, and what reads it as it is when the copy arrives."""
        if getattr(one, "kind", None) != kind:
            raise OperandError(f"{call} at line {line} takes a map of kind {kind}, and this is "
                               f"{getattr(one, 'kind', type(one).__name__)}")  # fmt: skip
        array, at = _plain(one.array), tuple(map(int, at))
        if array.itemsize != itemsize:
            raise OperandError(f"{call} at line {line}: the map is of {array.dtype}, and the tiles have {itemsize} "
                               "bytes an element")  # fmt: skip
        rows, columns = one.box if kind == "tiled" else (one.pixels, one.channels)
        if columns * itemsize not in boxes.ROWS:
            raise OperandError(f"{call} at line {line}: a row of the map's box has {columns * itemsize} bytes: must "
                               f"be one of {boxes.ROWS}")  # fmt: skip
        rounded = boxes.nearest_tf32 if one.tf32 else np.asarray
        if kind == "tiled":
            return rows, columns, lambda: rounded(boxes.tiled(array, (rows, columns), *at))
        n, d, h, w, c, *taps = at
        if not all(0 <= tap < 32 for tap in taps):
            raise OperandError(f"{call} at line {line}: the offsets {tuple(taps)} of a tap must be from 0 to 31")
        try:
            boxes.im2col(array, one, (n, d, h, w), c, tuple(taps))
        except ValueError as error:
            raise OperandError(f"{call} at line {line}: {error}") from None
        return rows, columns, lambda: rounded(boxes.im2col(array, one, (n, d, h, w), c, tuple(taps)))

    def _require_inside(self, call: str, line: int, tiles: Any, i: int, itemsize: int, count: int) -> int:
        """The address of tiles[i], from which on a box has its place. Raises IndexError and OperandError."""
        start, size = i * itemsize, self.module.block.allocations.bytes.size
        if start % boxes.ROW:
            raise OperandError(f"misaligned 1024-bit access: {call} at line {line} is given byte {start} of the "
                               f"tiles, which is not a multiple of {boxes.ROW}")  # fmt: skip
        stop = start + count * itemsize
        if i < 0 or stop > size:
            wrong = f"index {i} is negative" if i < 0 else f"index {stop - 1} is out of bounds: there are {size}"
            raise IndexError(f"{call} at line {line} takes bytes {start} to {stop - 1} of the tiles: {wrong}")
        return start

    def _require_free(self, call: str, line: int, rank: int, where: slice, thread: int) -> None:
        """Raise RefilledError if others may still use what a copy is to fill."""
        cells, row = self.cells[rank], self.clocks.rows[thread]
        before = f"{call} at line {line} fills bytes {CELL * where.start} to {CELL * where.stop - 1} of the tiles"
        read = cells.unread(where, row)
        if read is not None:
            raise RefilledError(f"{before}, which what line {read} reads or started to read may still need: "
                                "this thread has not waited until they are released")  # fmt: skip
        written = cells.unwritten(where, row)
        if written and written.copied:
            raise RefilledError(f"{before}, to which the copy of line {written.line} may be under way: this thread "
                                "has not waited until it was there and released")  # fmt: skip
        if written:
            self._unfenced(before, written)

    def _unfenced(self, before: str, written: Seen) -> NoReturn:
        if not written.waited:
            raise NotAwaitedError(f"{before}, and the copy of line {written.line} to them was not waited for")
        raise ProxyFenceError(f"{before}, which line {written.line} wrote: between them comes fence_async() by the "
                              "thread that wrote, and then a barrier")  # fmt: skip

    def deliver(self) -> bool:
        """Let one copy arrive, the next in this launch's order; False if none is under way."""
        if not self._flying:
            return False
        at = (0, -1, (7 * self._delivered + self._turn) % len(self._flying))[self._turn % 3]
        self._delivered += 1
        copy = self._flying.pop(at)
        memory = self.blocks[copy.rank].allocations.bytes
        memory.view(f"f{copy.itemsize}")[copy.places] = copy.read()
        self.cells[copy.rank].flying[copy.cells] = False
        barrier = copy.barrier
        if barrier.phase != copy.phase or (barrier.pending == 0 and barrier.bytes < copy.size):
            raise BarrierError(f"{_expects(barrier)} and {copy.call} at line {copy.line} brings {copy.size} in phase "
                               f"{copy.phase} of {barrier.name}: more bytes come than are told")  # fmt: skip
        barrier.gathered = joined(barrier.gathered, copy.clock)
        barrier.bytes -= copy.size
        self._complete(barrier)
        return True

    # --- stores of the copy engine ---

    def store(self, one: Any, row: Any, column: Any, tiles: Any, i: Any) -> None:
        block, thread, frame = self._here()
        line, itemsize = frame.f_lineno, self._require_tiles("tma_store2", frame.f_lineno, tiles)
        rows, columns, _ = self._box("tma_store2", line, one, "tiled", itemsize, (row, column))
        start = self._require_inside("tma_store2", line, tiles, int(i), itemsize, rows * columns)
        where = slice(start // CELL, (start + rows * columns * itemsize) // CELL)
        self._require_there(f"tma_store2 at line {line} reads", block.rank, where, self.clocks.rows[thread])
        own = self._own[thread]
        if own.column is None:
            own.column = self.clocks.column()
        self.cells[block.rank].note_unit(where, own.column, own.stored + len(own.stores), line)
        places, array = boxes.tile(start, rows, columns, itemsize), _plain(one.array)
        at = int(row), int(column)
        own.stores[-1].append(
            _Store(line, block.rank, places, itemsize, lambda values: boxes.put(array, values, *at))
        )

    def _require_there(self, before: str, rank: int, where: Any, row: Row) -> None:
        """Raise if the asynchronous units may not find in these cells what was last written to them."""
        found = self.cells[rank].unwritten(where, row)
        if found is None:
            return
        if found.copied:
            self._not_there(before, found)
        self._unfenced(f"{before} tiles", found)

    def _not_there(self, before: str, copy: Seen) -> NoReturn:
        """A copy is needed before it is there."""
        barrier = next(one for one in self._barriers.values() if one.column == copy.column)
        if copy.early:
            raise BarrierError(f"{_expects(barrier)} and {barrier.name} lets threads pass before the copy of line "
                               f"{copy.line} is there: {before} what it is to bring")  # fmt: skip
        raise NotAwaitedError(f"{before} what the copy of line {copy.line} is to bring, without barrier_wait for the "
                              f"phase of {barrier.name} that counts its bytes")  # fmt: skip

    def tma_commit(self) -> None:
        _, thread, _ = self._here()
        self._own[thread].stores.append([])

    def tma_wait(self, pending: Any, written: bool) -> None:
        """Let this thread's groups of stores be read, and written too, but for the youngest ``pending``."""
        block, thread, _ = self._here()
        self._finish_stores(block, thread, int(pending), written)

    def _finish_stores(self, block: Any, thread: int, pending: int, written: bool) -> None:
        own = self._own[thread]
        count = max(0, len(own.stores) - 1 - pending)
        for group in own.stores[:count]:
            for store in group:
                if store.values is None:
                    memory = block.allocations.bytes.view(f"f{store.itemsize}")
                    store.values = memory[store.places]
        if own.column is not None:
            self.clocks.rows[thread, own.column] = max(self.clocks.rows[thread, own.column], own.stored + count)
        if written:
            for store in (store for group in own.stores[:count] for store in group):
                assert store.values is not None
                store.write(store.values)
            del own.stores[:count]
            own.stored += count

    # --- wgmma ---

    def _warpgroup(self, block: Any, number: int) -> _Warpgroup:
        key = block.rank, number
        if key not in self._warpgroups:
            self._warpgroups[key] = _Warpgroup(*key, self.clocks.column())
        return self._warpgroups[key]

    def wgmma_fence(self) -> None:
        _, thread, _ = self._here()
        arrays = self.module.thread.arrays.values()
        self._own[thread].fenced = [(one, one.copy()) for one in arrays if one.dtype == np.float32]

    def multiply(
        self, call: str, acc: Any, i: Any, tiles: Any, a: Any, b: Any, N: Any, fragment: tuple[Any, Any] | None = None
    ) -> None:
        """Start acc[i:i+N/2] += A @ B; all 128 threads of the warpgroup come to it.

        ``fragment``: the array, and the index, of four values of A in the thread's registers; ``a`` is 0 then.
        """
        block, thread, frame = self._here()
        line, number = frame.f_lineno, self.module.thread.number
        itemsize = self._require_tiles(call, line, tiles)
        i, a, b, N = int(i), int(a), int(b), int(N)
        group, own = self._warpgroup(block, number // WARPGROUP), self._own[thread]
        if len(group.groups) == own.groups:
            group.groups.append(_Group())
        products = group.groups[own.groups].products
        given, place = (i, a, b, N, itemsize), (frame.f_code, frame.f_lasti)
        if len(products) == own.open:
            products.append(self._product(call, place, line, given, block, group, own.groups))
        product = products[own.open]
        if product.given != given or product.place != place:
            raise WarpgroupError(f"{call} at line {line}: thread {number} of the block gives i, descriptors, N = "
                                 f"{given[:4]}, and others of its warpgroup {product.given[:4]} at line "
                                 f"{product.line}: all 128 threads must come to one wgmma with the same")  # fmt: skip
        np.minimum(product.clock, self._row(thread, product.clock), out=product.clock)
        own.open += 1
        own.last = call, line
        product.parts[number % WARPGROUP] = self._take(call, line, own, acc, i, i + N // 2).values
        if fragment is not None:
            product.fragments[number % WARPGROUP] = self._lend(call, line, own, *fragment)

    def _row(self, thread: int, like: Row) -> Row:
        return self.clocks.rows[thread, : len(like)]

    def _product(
        self, call: str, place: Any, line: int, given: tuple[int, ...], block: Any, group: _Warpgroup, number: int
    ) -> _Product:
        """A wgmma that the first thread comes to: its operands' places, which are read from now on."""
        i, a, b, N, itemsize = given
        if self.size < (group.number + 1) * WARPGROUP:
            raise OperandError(f"{call} at line {line}: a wgmma is of 128 threads, and the block has {self.size}")
        if N % 8 or not 8 <= N <= 256:
            raise OperandError(f"{call} at line {line}: N is {N}: must be a multiple of 8 from 8 to 256")
        if itemsize != (4 if call.startswith("wgmma_tf32") else 2):
            raise OperandError(f"{call} at line {line}: elements of the tiles have {itemsize} bytes")
        depth = 32 // itemsize
        try:
            left = None if call == "wgmma_tf32_registers" else boxes.operand(a, 64, depth, itemsize)
            right = boxes.operand(b, N, depth, itemsize, call == "wgmma_f16_rows")
        except ValueError as error:
            raise DescriptorError(f"{call} at line {line}: {error}") from None
        size = block.allocations.bytes.size
        for name, places in (("a", left), ("b", right)):
            if places is None:
                continue
            last = int(places.max())
            if (last + 1) * itemsize > size:
                fields = boxes.decoded(a if name == "a" else b)
                raise DescriptorError(f"{call} at line {line}: descriptor {name}, {fields}, reaches byte "
                                      f"{(last + 1) * itemsize - 1} of the tiles, and there are {size}")  # fmt: skip
            self.cells[block.rank].note_unit(_cells(places, itemsize), group.column, number + 1, line)
        clock = np.full(self.clocks.rows.shape[1], np.iinfo(np.int32).max, np.int32)
        return _Product(call, place, line, given, left, right, clock, [None] * WARPGROUP, [None] * WARPGROUP)

    def _take(self, call: str, line: int, own: _Own, acc: Any, start: int, stop: int) -> _Flight:
        """The sums leave the registers. Raises FenceError if the thread may have changed them since its fence."""
        raw = _plain(acc)
        for flight in own.flights:
            if flight.raw is raw and (flight.start, flight.stop) == (start, stop):
                flight.group = own.groups  # that nobody has touched them shows when they land
                return flight
            if flight.raw is raw and start < flight.stop and flight.start < stop:
                raise WgmmaOrderError(f"{call} at line {line} adds to sums {start} to {stop - 1}, and that of line "
                                      f"{flight.line} to {flight.start} to {flight.stop - 1}: wgmma_wait comes "
                                      "between")  # fmt: skip
        if raw.dtype != np.float32:
            raise OperandError(f"{call} at line {line}: sums are float32, and these are {raw.dtype}")
        if start < 0 or stop > raw.size:
            raise IndexError(f"{call} at line {line}: elements {start} to {stop - 1} of {raw.size} sums")
        held = next((copy for array, copy in own.fenced or () if array is raw), None)
        if held is None or held[start:stop].tobytes() != raw[start:stop].tobytes():
            why = "no wgmma_fence() came before" if held is None else "they were changed since the last wgmma_fence()"
            raise WgmmaOrderError(f"{call} at line {line} adds to sums, and {why}")
        if hasattr(acc, "flat_read"):
            acc.flat_read(start, stop)
            acc.under_way(start, stop)
        flight = _Flight(acc, raw, start, stop, raw[start:stop].copy(), own.groups, call, line)
        raw[start:stop] = np.nan
        own.flights.append(flight)
        return flight

    def _lend(self, call: str, line: int, own: _Own, frag: Any, j: Any) -> tuple[Array, bytes]:
        """A's values in a thread's registers, as they are read later, and as they are now."""
        raw, j = _plain(frag), int(j)
        if raw.dtype != np.float32:
            raise OperandError(f"{call} at line {line}: A is float32, and this is {raw.dtype}")
        if j < 0 or j + 4 > raw.size:
            raise IndexError(f"{call} at line {line}: elements {j} to {j + 3} of {raw.size} of A")
        held = next((copy for array, copy in own.fenced or () if array is raw), None)
        if held is None or held[j : j + 4].tobytes() != raw[j : j + 4].tobytes():
            why = "no wgmma_fence() came before" if held is None else "they were changed since the last wgmma_fence()"
            raise WgmmaOrderError(f"{call} at line {line} reads values of A in registers, and {why}")
        if hasattr(frag, "flat_read"):
            frag.flat_read(j, j + 4)
        return raw[j : j + 4], raw[j : j + 4].tobytes()

    def _require_untouched(self, flight: _Flight) -> None:
        if not np.isnan(flight.raw[flight.start : flight.stop]).all():
            raise WgmmaOrderError(f"{flight.call} at line {flight.line} adds to sums that the thread changes before "
                                  "wgmma_wait: until then they are the matrix unit's")  # fmt: skip

    def wgmma_commit(self) -> None:
        block, thread, _ = self._here()
        own, number = self._own[thread], self.module.thread.number
        group = self._warpgroup(block, number // WARPGROUP)
        if len(group.groups) == own.groups:
            group.groups.append(_Group())
        found = group.groups[own.groups]
        if own.open < len(found.products):
            line = found.products[own.open].line
            raise WarpgroupError(f"{found.products[own.open].call} at line {line}: thread {number} of the block does "
                                 "not come to it, and others of its warpgroup do: all 128 threads must")  # fmt: skip
        found.committed += 1
        own.groups += 1
        own.open = 0
        if found.committed == WARPGROUP:
            for sleeper in group.waiting:
                block.wake(sleeper)
            group.waiting.clear()

    def wgmma_wait(self, pending: Any) -> None:
        block, thread, frame = self._here()
        own, number = self._own[thread], self.module.thread.number
        done = own.groups - int(pending)
        if done <= own.waited:
            return
        group = self._warpgroup(block, number // WARPGROUP)
        while group.groups[done - 1].committed < WARPGROUP:
            last = group.groups[done - 1]
            group.waiting.append(self.module.thread)

            def wants(last: _Group = last) -> str:
                return f"{WARPGROUP - last.committed} other threads of the warpgroup to commit the same wgmma"

            block.park(Parked("wgmma_wait", frame.f_lineno, wants))
        for one in group.groups[own.waited : done]:
            if not one.done:
                self._carry_out(block, one)
        own.waited = done
        self.clocks.rows[thread, group.column] = done
        for flight in [flight for flight in own.flights if flight.group < done]:
            self._land(own, flight)

    def _land(self, own: _Own, flight: _Flight) -> None:
        """The sums are back in the registers."""
        self._require_untouched(flight)
        own.flights.remove(flight)
        flight.raw[flight.start : flight.stop] = flight.values
        for array, copy in own.fenced or ():
            if array is flight.raw:
                copy[flight.start : flight.stop] = flight.values
        if hasattr(flight.array, "flat_write"):
            flight.array.flat_write(flight.start, flight.stop, flight.values)

    def _carry_out(self, block: Any, group: _Group) -> None:
        """Read the operands of a group's products, add them up."""
        group.done = True
        for product in group.products:
            _, _, _, N, itemsize = product.given
            absent = [number for number, part in enumerate(product.parts) if part is None]
            if absent:
                raise WarpgroupError(f"{product.call} at line {product.line}: {len(absent)} threads of the warpgroup "
                                     f"do not come to it, such as its thread {absent[0]}: all 128 must")  # fmt: skip
            before = f"{product.call} at line {product.line} reads"
            self._require_operands(before, block.rank, product)
            memory = block.allocations.bytes.view(f"f{itemsize}")
            left = _exact(self._from_registers(product) if product.left is None else memory[product.left])
            right = _exact(memory[product.right])
            sums = np.array(product.parts).reshape(4, 8, 4, N // 8, 2, 2)
            matrix = sums.transpose(0, 4, 1, 3, 2, 5).reshape(64, N)
            # Products are exact in float64, and the sum is rounded once: as in lessons/tensorcores.py.
            matrix = (matrix.astype(np.float64) + left @ right.T).astype(np.float32)
            dealt = matrix.reshape(4, 2, 8, N // 8, 4, 2).transpose(0, 2, 4, 3, 1, 5).reshape(WARPGROUP, N // 2)
            for part, values in zip(product.parts, dealt, strict=True):
                part[:] = values
        group.products = []

    def _from_registers(self, product: _Product) -> Array:
        """A of a product, 64 x 8, from its threads' registers; raise WgmmaOrderError if one has changed it."""
        for now, held in product.fragments:
            if now.tobytes() != held:
                raise WgmmaOrderError(f"{product.call} at line {product.line} reads values of A in registers that "
                                      "the thread changes before wgmma_wait")  # fmt: skip
        values = np.array([now for now, _ in product.fragments]).reshape(4, 8, 4, 2, 2)
        return values.transpose(0, 4, 1, 3, 2).reshape(64, 8)

    def _require_operands(self, before: str, rank: int, product: _Product) -> None:
        """Raise if what a product reads is not there, or does not lie as its descriptors say."""
        _, a, b, _, itemsize = product.given
        across = product.call == "wgmma_f16_rows"
        for name, word, places, lies in (("a", a, product.left, False), ("b", b, product.right, across)):
            if places is None:
                continue
            cells = _cells(places, itemsize)
            self._require_there(before, rank, cells, product.clock)
            if self.cells[rank].never_written(cells):
                raise UnwrittenError(f"{before} tiles to which nothing was written, by descriptor {name}, "
                                     f"{boxes.decoded(word)}")  # fmt: skip
            wrong = self.cells[rank].misread(cells, lies)
            if wrong:
                row, previous, found = wrong
                what = "columns" if lies else "rows"
                raise DescriptorError(f"{before} with descriptor {name}, {boxes.decoded(word)}, what does not lie "
                                      f"so: {what} {row - 1} and {row} of the operand come from {what} {previous} "
                                      f"and {found} of the box that was copied, or k does not follow k")  # fmt: skip

    # --- registers ---

    def take_registers(self, count: Any) -> None:
        block, thread, frame = self._here()
        own = self._registers("take_registers", thread, int(count), frame.f_lineno)
        more = int(count) - (own.registers or 0)
        if more < 0:
            raise OperandError(f"take_registers at line {frame.f_lineno} asks for {int(count)}, and the thread has "
                               f"{own.registers}")  # fmt: skip
        while block.spare < more:
            block.asking.append(self.module.thread)

            def wants(more: int = more, block: Any = block) -> str:
                return f"{more} registers more each, and the block has {block.spare} to give"

            block.park(Parked("take_registers", frame.f_lineno, wants, urgent=True))
        block.spare -= more
        own.registers = int(count)

    def give_registers(self, count: Any) -> None:
        block, thread, frame = self._here()
        own = self._registers("give_registers", thread, int(count), frame.f_lineno)
        less = (own.registers or 0) - int(count)
        if less < 0:
            raise OperandError(f"give_registers at line {frame.f_lineno} keeps {int(count)}, and the thread has "
                               f"{own.registers}")  # fmt: skip
        own.registers = int(count)
        block.spare += less
        for sleeper in block.asking:
            block.wake(sleeper)
        block.asking.clear()

    def _registers(self, call: str, thread: int, count: int, line: int) -> _Own:
        if count % 8 or not 24 <= count <= 256:
            raise OperandError(f"{call} at line {line}: {count} registers: must be a multiple of 8 from 24 to 256")
        own = self._own[thread]
        if own.registers is None:
            if self._bounds is None:
                raise OperandError(f"{call} at line {line}: registers change hands in a kernel whose launch bounds "
                                   "are known: decorate it with jit(threads) of lessons/hopper.py")  # fmt: skip
            threads, blocks = (*self._bounds, 1)[:2] if isinstance(self._bounds, tuple) else (self._bounds, 1)
            own.registers = min(256, occupancy.REGISTERS // (max(blocks, 1) * threads) // 8 * 8)
        return own

    # --- ends ---

    def thread_ended(self, block: Any, number: int) -> None:
        """Raise NotAwaitedError if the thread leaves what it has started."""
        thread = block.rank * self.size + number
        if thread in self._own:
            own = self._own[thread]
            if own.open or own.groups > own.waited:
                call, line = own.last
                raise WgmmaOrderError(f"{call} at line {line}: the thread ends before wgmma_wait")
            unread = [store for group in own.stores for store in group if store.values is None]
            if unread:
                raise NotAwaitedError(f"tma_store2 at line {unread[0].line}: the thread ends before tma_commit and "
                                      "tma_wait_read, and its tile is no longer there")  # fmt: skip
            self._finish_stores(block, thread, -1, True)

    def left(self) -> None:
        """A thread has ended: nobody in the cluster waits for it any longer."""
        alive = sum(one.size - len(one.ended) for one in self.blocks)
        if self._in_cluster and len(self._in_cluster) == alive:
            self._cluster_met()

    def finish(self) -> None:
        """All threads have ended: raise if a block may have left before what it asked for, or others, was done."""
        rows, size = self.clocks.rows, self.size
        for copy, tag in self._copied.values():
            first = copy.rank * size
            if not (rows[first : first + size, copy.barrier.column] >= tag).any():
                raise NotAwaitedError(f"{copy.call} at line {copy.line}: the block ends, and none of its threads has "
                                      f"waited at {copy.barrier.name} for the copy")  # fmt: skip
        for (thread, rank), (tag, line) in self._remote.items():
            if not (rows[rank * size : rank * size + size, thread] >= tag).any():
                raise LeftError(f"line {line} reaches block {rank} of the cluster, which may have ended by then: "
                                "cluster_sync() lets no block leave before the others are done")  # fmt: skip

    def deadlock(self) -> DeadlockError:
        """Nobody can go on: who waits where, and for what."""
        found: dict[tuple[bool, int, str], list[tuple[Any, int]]] = defaultdict(list)
        for block in self.blocks:
            for thread, parked in block.parked.items():
                text = f"{parked.call} at line {parked.line}: {{}} for {parked.wants()}"
                found[not parked.urgent, parked.line, text].append((block, thread.number))
            for thread in block.blocked:
                line = thread.barrier[2]
                found[True, line, f"cuda.syncthreads at line {line}: {{}} for the other threads"].append(
                    (block, thread.number)
                )
        parts = []
        for (_, _, text), threads in sorted(found.items()):
            block, number = min(threads, key=lambda one: (one[0].rank, one[1]))
            who = f"thread {block.place(number)}"
            if len(threads) > 1:
                who = f"{len(threads)} threads, such as {block.place(number)},"
            parts.append(text.format(f"{who} of block {block.point} {'waits' if len(threads) == 1 else 'wait'}"))
        return DeadlockError(f"nobody can go on. {'; '.join(parts)}")


def _cells(places: Array, itemsize: int) -> Array:
    """The cells of these elements; of a wider one the first."""
    found: Array = places if itemsize == CELL else places * itemsize // CELL
    return found


def _exact(values: Array) -> Array:
    """Elements as float64; of float32 what TF32 has of them."""
    if values.dtype == np.float32:
        values = (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return values.astype(np.float64)


def _named(value: Any, frame: FrameType) -> str:
    """What the frame calls a value."""
    return next((name for name, one in frame.f_locals.items() if one is value), "the array")
