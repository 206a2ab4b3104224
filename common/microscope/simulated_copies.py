"""The copy engine (TMA) in the simulator: boxes of tensor maps that arrive late, and tiles that leave late.

A load arrives when no thread can go on without, in an order that changes from launch to launch; until then its place
holds no number. A store reads its tile when its thread waits for that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from common.microscope import boxes
from common.microscope.simulated_barriers import Barrier, Barriers
from common.microscope.simulated_threads import Array, OperandError, Threads, plain

_NOTHING = 0x7FF9  # two of it are a NaN of float32, each is one of float16


@dataclass(eq=False)
class _Load:
    """A box on its way to a block's tiles, elements ``first`` to ``last`` of them."""

    rank: int
    barrier: Barrier
    places: Array  # elements of the tiles, by row and column of the box
    itemsize: int
    tiles: Any
    first: int
    last: int
    read: Callable[[], Array]

    def arrive(self, memory: Array) -> None:
        memory.view(f"f{self.itemsize}")[self.places] = self.read()
        self.tiles.arrived(self.first, self.last)
        self.barrier.take(self.places.size * self.itemsize)


@dataclass(eq=False)
class _Store:
    """A tile on its way to an array: ``values`` once it is read."""

    places: Array
    itemsize: int
    write: Callable[[Array], None]
    values: Array | None = None

    def finish(self) -> None:
        if self.values is not None:
            self.write(self.values)


class CopyEngine:
    """Copies of a cluster's blocks that are under way. ``turn`` numbers the launch."""

    def __init__(self, threads: Threads, barriers: Barriers, turn: int) -> None:
        self._threads, self._barriers = threads, barriers
        self._turn, self._delivered = turn, 0
        self._flying: list[_Load] = []
        # by thread those that are not written, in groups; the last group is not committed
        self._stores: dict[int, list[list[_Store]]] = defaultdict(lambda: [[]])

    def load(self, call: str, tiles: Any, i: Any, one: Any, bars: Any, b: Any, at: Any, mask: Any = None) -> None:
        """Start a copy of the map's box to tiles[i:] of this block, or of those in ``mask``."""
        block, _, frame = self._threads.here()
        line = frame.f_lineno
        itemsize = self._threads.require_tiles(call, line, tiles)
        kind = "im2col" if "im2col" in call else "tiled"
        rows, columns, read = _box(call, line, one, kind, itemsize, at)
        start = self._require_inside(call, line, int(i), itemsize, rows * columns)
        ranks = [block.rank]
        if mask is not None:
            ranks = [rank for rank in range(16) if int(mask) >> rank & 1]
            for rank in ranks or [-1]:
                self._threads.require_rank(call, rank, line)
        places = boxes.tile(start, rows, columns, itemsize)
        first, last = int(i), int(i) + rows * columns
        for rank in ranks:
            barrier = self._barriers.at(call, bars, b, frame, rank)
            allocations = self._threads.blocks[rank].allocations
            allocations.bytes[start : start + rows * columns * itemsize].view(np.uint16)[:] = _NOTHING
            there = allocations.dynamic(plain(tiles).dtype)
            there.under_way(first, last)
            self._flying.append(_Load(rank, barrier, places, itemsize, there, first, last, read))

    def _require_inside(self, call: str, line: int, i: int, itemsize: int, count: int) -> int:
        """The address of tiles[i], from which on a box has its place. Raises IndexError and OperandError."""
        start, size = i * itemsize, self._threads.module.block.allocations.bytes.size
        if start % boxes.ROW:
            raise OperandError(f"misaligned 1024-bit access: {call} at line {line} is given byte {start} of the "
                               f"tiles, which is not a multiple of {boxes.ROW}")  # fmt: skip
        stop = start + count * itemsize
        if i < 0 or stop > size:
            wrong = f"index {i} is negative" if i < 0 else f"index {stop - 1} is out of bounds: there are {size}"
            raise IndexError(f"{call} at line {line} takes bytes {start} to {stop - 1} of the tiles: {wrong}")
        return start

    def deliver(self) -> bool:
        """Let one load arrive, the next in this launch's order; False if none is under way."""
        if not self._flying:
            return False
        at = (0, -1, (7 * self._delivered + self._turn) % len(self._flying))[self._turn % 3]
        self._delivered += 1
        load = self._flying.pop(at)
        load.arrive(self._threads.blocks[load.rank].allocations.bytes)
        return True

    def store(self, one: Any, row: Any, column: Any, tiles: Any, i: Any) -> None:
        _, thread, frame = self._threads.here()
        line = frame.f_lineno
        itemsize = self._threads.require_tiles("tma_store2", line, tiles)
        rows, columns, _ = _box("tma_store2", line, one, "tiled", itemsize, (row, column))
        start = self._require_inside("tma_store2", line, int(i), itemsize, rows * columns)
        places, array, at = boxes.tile(start, rows, columns, itemsize), plain(one.array), (int(row), int(column))
        store = _Store(places, itemsize, lambda values: boxes.put(array, values, *at))
        self._stores[thread][-1].append(store)

    def commit(self) -> None:
        _, thread, _ = self._threads.here()
        self._stores[thread].append([])

    def wait(self, pending: Any, written: bool) -> None:
        """Let this thread's groups of stores be read, and written too, but for the youngest ``pending``."""
        block, thread, _ = self._threads.here()
        groups = self._stores[thread]
        done = groups[: max(0, len(groups) - 1 - int(pending))]
        for store in (store for group in done for store in group):
            if store.values is None:
                store.values = block.allocations.bytes.view(f"f{store.itemsize}")[store.places]
            if written:
                store.finish()
        if written:
            del groups[: len(done)]

    def leave(self, thread: int) -> None:
        """The thread ends: its stores that were read are written; of the others the tiles are no longer there."""
        for group in self._stores.pop(thread, []):
            for store in group:
                store.finish()


def _box(
    call: str, line: int, one: Any, kind: str, itemsize: int, at: Any
) -> tuple[int, int, Callable[[], Array]]:  # fmt: skip
    """Rows and columns of a map's box, and what reads it as it is when the copy arrives."""
    if getattr(one, "kind", None) != kind:
        raise OperandError(f"{call} at line {line} takes a map of kind {kind}, and this is "
                           f"{getattr(one, 'kind', type(one).__name__)}")  # fmt: skip
    array, at = plain(one.array), tuple(map(int, at))
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
    if not all(0 <= tap < boxes.OFFSETS for tap in taps):
        raise OperandError(f"{call} at line {line}: the offsets {tuple(taps)} of a tap must be from 0 to "
                           f"{boxes.OFFSETS - 1}")  # fmt: skip
    try:
        boxes.im2col(array, one, (n, d, h, w), c, tuple(taps))
    except ValueError as error:
        raise OperandError(f"{call} at line {line}: {error}") from None
    return rows, columns, lambda: rounded(boxes.im2col(array, one, (n, d, h, w), c, tuple(taps)))
