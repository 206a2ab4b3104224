"""The copy engine (TMA): boxes of arrays that tensor maps describe, to shared memory and back.

A load arrives as late as it may: when somebody waits for the barrier that its bytes count at, and nobody can go on
without. A store reads shared memory when its thread waits for that. PTX ISA, "Data Movement and Conversion
Instructions: cp.async.bulk.tensor", "Tensors", "im2col mode".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from common.trace import boxes, mbarriers
from common.trace.clocks import STORE
from common.trace.mbarriers import Barrier, Barriers
from common.trace.memory import SECTOR_BYTES, WARP, Bools, Cost, Ints, Key
from common.trace.spaces import View, as_offset
from common.trace.tiles import Agent, Tiles
from common.trace.values import Value

if TYPE_CHECKING:
    from common.trace.lanes import Machine

LEFT_OVER = "no wait comes after it"  # of a copy: said last, as a read before it arrived says more
_BOUNDARY = 128  # bytes, on which a box in shared memory begins
_WAVEFRONT = 128  # bytes that shared memory takes at a time


class Map:
    """A tensor map as a kernel sees it: the array that it describes, and its fields."""

    def __init__(self, view: View, given: Any) -> None:
        self.view, self.name, self.dtype = view, view.name, view.dtype
        self.kind, self.box, self.swizzle = given.kind, given.box, int(given.swizzle)
        self.lower, self.upper, self.strides = given.lower, given.upper, given.strides
        self.rounds = bool(getattr(given, "tf32", False))

    @property
    def rows(self) -> int:
        return int(self.box[0])

    @property
    def columns(self) -> int:
        return int(self.box[1])

    @property
    def bytes(self) -> int:
        """That count at a barrier: of the whole box, outside the array too."""
        return self.rows * self.columns * int(self.dtype.itemsize)

    def elements(self) -> Ints:
        """Where the box's elements lie in shared memory, in bytes from its beginning, before the swizzle."""
        pixels, columns = np.arange(self.rows)[:, None], np.arange(self.columns)[None]
        found: Ints = pixels * self.swizzle + columns * self.dtype.itemsize
        return found

    def tile(self, row: int, column: int) -> tuple[Ints, Bools]:
        """The elements of the storage that a box from (row, column) on holds, and which of them there are."""
        m, n = row + np.arange(self.rows)[:, None], column + np.arange(self.columns)[None]
        extents, strides = self.view.shape, self.view.strides
        inside = (m >= 0) & (m < extents[0]) & (n >= 0) & (n < extents[1])
        return self.view.start + m * strides[0] + n * strides[1], inside

    def pixels(self, base: tuple[int, ...], first: int, tap: tuple[int, ...]) -> tuple[Ints, Bools] | None:
        """The same of im2col: from the base pixel (n, d, h, w) on, at a tap; None if the walk has no such pixel."""
        shape, strides = self.view.shape, self.view.strides
        try:
            pixel = boxes.walked(shape, self, self.rows, base, tap)
        except ValueError:
            return None
        channel = first + np.arange(self.columns)[None]
        offset, inside = self.view.start + channel * strides[4], (channel >= 0) & (channel < shape[4])
        for index, extent, stride in zip(pixel, shape, strides, strict=False):
            offset = offset + index[:, None] * stride
            inside = inside & ((index >= 0) & (index < extent))[:, None]
        return offset, inside


@dataclass
class Load:
    """A box on its way to a block's shared memory."""

    tiles: Tiles
    places: Ints
    values: NDArray[Any]
    bytes: int
    known: Ints

    def arrive(self) -> None:
        self.tiles.arrive(self.places, self.values)


@dataclass
class Store:
    """A box on its way to global memory, in its thread's group of this number."""

    map: Map
    tiles: Tiles
    places: Ints
    target: Ints
    lane: int
    line: int
    group: int

    def carry_out(self, machine: Machine) -> None:
        """Read shared memory now, as late as it may be read, and write."""
        values = self.tiles.data[self.places]
        self.map.view.storage.write_box(machine, self.map.view, self.target, values, self.lane, self.line)


class Stores:
    """The stores of one thread that are under way, the oldest first."""

    def __init__(self) -> None:
        self.committed = 0
        self.under_way: list[Store] = []

    def wait(self, machine: Machine, lane: int, pending: int) -> None:
        done = self.committed - pending
        while self.under_way and self.under_way[0].group <= done:
            self.under_way.pop(0).carry_out(machine)
        warp, clocks = lane // WARP, machine.asynchronous.clocks
        known = np.zeros_like(clocks.known[warp])
        known[clocks.of(STORE, warp)] = done
        clocks.acquire_by(warp, 1 << lane % WARP, 0, known)  # others of its warp by its next syncwarp


def at(value: Value, lane: int) -> int:
    """A lane's value."""
    return int(value) if np.ndim(value) == 0 else int(value[lane])


def load(
    machine: Machine, line: int, tiles: View, i: Value, box: Map, bars: Barriers, b: Value,
    place: tuple[Value, ...], mask: Value | None = None,
) -> None:  # fmt: skip
    """Begin copies: one for each active lane, to its own block or to those of its cluster that ``mask`` names.

    ``place``: (row, column), or (n, d, h, w, c, t, r, s).
    """
    _require(machine, line, tiles, box)
    for lane, number in bars.named(line, b, "used"):
        where = [at(value, lane) for value in place]
        found = _source(machine, line, box, where, lane)
        if found is None:
            continue
        source, inside = found
        values = _read(machine, line, box, source, inside, lane)
        block = int(machine.block_number[lane])
        blocks = [block] if mask is None else machine.asynchronous.cluster_of(block, at(mask, lane), line, lane)
        for target in blocks:
            barrier = bars.at(target, number)
            mbarriers.usable(machine, line, barrier, lane)
            _fill(machine, line, tiles, at(as_offset(i), lane), box, barrier, values, lane)


def _require(machine: Machine, line: int, tiles: View, box: Map) -> None:
    if type(box) is not Map:
        raise machine.error(line, "a copy takes a tensor map, made by tensor_map or im2col_map")
    if not isinstance(tiles.storage, Tiles) or tiles.dtype != box.dtype:
        raise machine.error(line, f"{box.name} holds {box.dtype}, and {tiles.name} is no shared memory of that type")


def _source(machine: Machine, line: int, box: Map, where: list[int], lane: int) -> tuple[Ints, Bools] | None:
    if len(where) == 2:
        if box.kind != "tiled":
            raise machine.error(line, f"{box.name} is an im2col map, and this copy takes a tiled one")
        return box.tile(*where)
    if box.kind != "im2col":
        raise machine.error(line, f"{box.name} is a tiled map, and this copy takes an im2col one")
    if not all(0 <= tap < boxes.OFFSETS for tap in where[5:]):
        text = f"the offsets {tuple(where[5:])} of a tap must be from 0 to {boxes.OFFSETS - 1}"
        machine.fault("operand", line, box.name, text, lane=lane, count=1)
        return None
    found = box.pixels(tuple(where[:4]), where[4], tuple(where[5:]))
    if found is None:
        text = f"{box.name} is read from the pixel (n, d, h, w) = {tuple(where[:4])} on, where no window begins"
        machine.fault("operand", line, box.name, text, lane=lane, count=1)
    return found


def _read(machine: Machine, line: int, box: Map, source: Ints, inside: Bools, lane: int) -> NDArray[Any]:
    """The box's values, zeros outside."""
    storage, view = box.view.storage, box.view
    chosen = source[inside]
    values = np.zeros(source.shape, box.dtype)
    values[inside] = storage.data[chosen]
    if box.rounds:
        values = boxes.nearest_tf32(values)
    if storage.written is not None and not storage.written[chosen].all():
        first = chosen[int(np.argmax(~storage.written[chosen]))]
        text = f"{view.element(int(first - view.start))}, which nothing has written, is copied"
        machine.fault("read-before-write", line, view.name, text, lane=lane, count=1)
    storage.note_box(machine, view, chosen, lane, line)
    _count(machine, line, "tma", box, _sectors(box, source, inside))
    return values


def _sectors(box: Map, source: Ints, inside: Bools) -> tuple[int, int]:
    """Sectors that a box touches, and the fewest that hold so many bytes."""
    size, storage = box.dtype.itemsize, box.view.storage
    rows = inside.any(axis=1)
    if not rows.any():
        return 0, 0
    address = storage.address + source[rows] * size
    kept = inside[rows]
    low = np.where(kept, address, np.iinfo(np.int64).max).min(axis=1) // SECTOR_BYTES
    high = np.where(kept, address + size - 1, 0).max(axis=1) // SECTOR_BYTES
    most = int((high - low).max()) + 1
    touched = np.minimum(low[:, None] + np.arange(most), high[:, None])
    return len(np.unique(touched)), -(-int(kept.sum()) * size // SECTOR_BYTES)


def _count(machine: Machine, line: int, op: str, box: Map, sectors: tuple[int, int]) -> None:
    if machine.ledger.recording:
        bits = 8 * box.bytes
        machine.ledger.tallies[Key(line, "global", op, box.name, bits)].add(1, Cost(1, *sectors, 1))


def _shared(machine: Machine, line: int, op: str, tiles: View, box: Map) -> None:
    if machine.ledger.recording:
        passes = -(-box.bytes // _WAVEFRONT)  # a row fills all banks, or several rows do
        machine.ledger.tallies[Key(line, "shared", op, tiles.name, 8 * box.bytes)].add(1, Cost(1, passes, passes, 1))


def _places(machine: Machine, line: int, tiles: View, i: int, box: Map, block: int, lane: int) -> Ints | None:
    """Where the box's elements lie among all blocks' tiles; None, and a fault, where it does not fit."""
    size = box.dtype.itemsize
    if i * size % _BOUNDARY:
        text = f"a box in {tiles.name} begins at {i}, which is no multiple of {_BOUNDARY} bytes"
        machine.fault("misaligned", line, tiles.name, text, lane=lane, count=1)
        return None
    last = i + box.rows * box.swizzle // size
    if i < 0 or last > tiles.size:
        text = f"{tiles.name} is written at {i} to {last - 1}, its extent is {tiles.size}"
        machine.fault("outside", line, tiles.name, text, lane=lane, count=1)
        return None
    address = boxes.swizzled(i * size + box.elements(), box.swizzle)
    storage: Tiles = tiles.storage
    return storage.flat(block, address // size).reshape(-1)


def _fill(
    machine: Machine, line: int, tiles: View, i: int, box: Map, barrier: Barrier, values: NDArray[Any], lane: int
) -> None:
    places = _places(machine, line, tiles, i, box, barrier.block, lane)
    if places is None:
        return
    _shared(machine, line, "tma", tiles, box)
    machine.asynchronous.pipeline.filling(barrier, line)
    agent = Agent(lane // WARP, lane, line, "filled")
    tiles.storage.filled_by_engine(machine, tiles, places, agent, barrier.column, barrier.phase + 1)
    tiles.storage.lay(places, box.rows, box.columns)
    known = machine.asynchronous.clocks.phases(lane)
    barrier.copies.append(Load(tiles.storage, places, values.reshape(-1), box.bytes, known))
    machine.asynchronous.loads.append((line, lane, barrier, tiles.name))


def store(machine: Machine, line: int, box: Map, row: Value, column: Value, tiles: View, i: Value) -> None:
    """Begin copies of boxes to global memory, one for each active lane; nothing outside is written."""
    _require(machine, line, tiles, box)
    engine = machine.asynchronous
    for lane in np.flatnonzero(machine.mask.bits).tolist():
        block = int(machine.block_number[lane])
        places = _places(machine, line, tiles, at(as_offset(i), lane), box, block, lane)
        if places is None:
            continue
        target, inside = box.tile(at(row, lane), at(column, lane))
        own = engine.stores.setdefault(lane, Stores())
        agent = Agent(lane // WARP, lane, line, "read by a bulk store")
        tiles.storage.read_by_engine(machine, tiles, places, agent, STORE, own.committed + 1)
        kept = inside.reshape(-1)
        own.under_way.append(
            Store(box, tiles.storage, places[kept], target.reshape(-1)[kept], lane, line, own.committed + 1)
        )
        _count(machine, line, "tma store", box, _sectors(box, target, inside))
        _shared(machine, line, "tma store", tiles, box)


def commit(machine: Machine, line: int) -> None:
    for lane in np.flatnonzero(machine.mask.bits).tolist():
        machine.asynchronous.stores.setdefault(lane, Stores()).committed += 1


def wait(machine: Machine, line: int, pending: int) -> None:
    for lane in np.flatnonzero(machine.mask.bits).tolist():
        if lane in machine.asynchronous.stores:
            machine.asynchronous.stores[lane].wait(machine, lane, pending)
