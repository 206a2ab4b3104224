"""The copy engine (TMA): boxes of arrays that tensor maps describe, to shared memory and back.

A load arrives as late as it may: when somebody waits for the barrier that its bytes count at, and nobody can go on
without. A store reads shared memory when its thread waits for that. PTX ISA, "Data Movement and Conversion
Instructions: cp.async.bulk.tensor", "Tensors", "im2col mode".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.trace.cost import LEFT_OVER, SECTOR_BYTES, WARP, Bools, Cost, Ints, Key
from common.trace.hopper import layouts, mbarriers
from common.trace.hopper.mbarriers import Barrier, Barriers, at, on_engines
from common.trace.hopper.tiles import Agent, Tiles
from common.trace.hopper.warps import STORE
from common.trace.intrinsics import one_number
from common.trace.state import State
from common.trace.values import Value
from common.trace.views import View, as_offset

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
            pixel = layouts.walked(shape, self, self.rows, base, tap)
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
    """A box on its way to global memory."""

    map: Map
    tiles: Tiles
    places: Ints
    target: Ints
    lane: int
    line: int

    def carry_out(self, state: State) -> None:
        """Read shared memory now, as late as it may be read, and write."""
        values = self.tiles.data[self.places]
        self.map.view.storage.write_box(state, self.map.view, self.target, values, self.lane, self.line)


def _load(
    state: State, line: int, tiles: View, i: Value, box: Map, bars: Barriers, b: Value,
    place: tuple[Value, ...], mask: Value | None = None,
) -> None:  # fmt: skip
    """Begin copies: one for each active lane, to its own block or to those of its cluster that ``mask`` names.

    ``place``: (row, column), or (n, d, h, w, c, t, r, s).
    """
    _require(state, line, tiles, box)
    for lane, number in bars.named(line, b, "used"):
        where = [at(value, lane) for value in place]
        found = _source(state, line, box, where, lane)
        if found is None:
            continue
        source, inside = found
        values = _read(state, line, box, source, inside, lane)
        block = int(state.block_number[lane])
        blocks = [block] if mask is None else state.engines.cluster_of(block, at(mask, lane), line, lane)
        for target in blocks:
            barrier = bars.at(target, number)
            mbarriers.usable(state, line, barrier, lane)
            _fill(state, line, tiles, at(as_offset(i), lane), box, barrier, values, lane)


def _require(state: State, line: int, tiles: View, box: Map) -> None:
    if type(box) is not Map:
        raise state.error(line, "a copy takes a tensor map, as Maps makes it")
    if not isinstance(tiles.storage, Tiles) or tiles.dtype != box.dtype:
        raise state.error(line, f"{box.name} holds {box.dtype}, and {tiles.name} is no shared memory of that type")


def _source(state: State, line: int, box: Map, where: list[int], lane: int) -> tuple[Ints, Bools] | None:
    if len(where) == 2:
        if box.kind != "tiled":
            raise state.error(line, f"{box.name} is an im2col map, and this copy takes a tiled one")
        return box.tile(*where)
    if box.kind != "im2col":
        raise state.error(line, f"{box.name} is a tiled map, and this copy takes an im2col one")
    if not all(0 <= tap < layouts.OFFSETS for tap in where[5:]):
        text = f"the offsets {tuple(where[5:])} of a tap must be from 0 to {layouts.OFFSETS - 1}"
        state.fault_of(lane, "operand", line, box.name, text)
        return None
    found = box.pixels(tuple(where[:4]), where[4], tuple(where[5:]))
    if found is None:
        text = f"{box.name} is read from the pixel (n, d, h, w) = {tuple(where[:4])} on, where no window begins"
        state.fault_of(lane, "operand", line, box.name, text)
    return found


def _read(state: State, line: int, box: Map, source: Ints, inside: Bools, lane: int) -> NDArray[Any]:
    """The box's values, zeros outside."""
    storage, view = box.view.storage, box.view
    chosen = source[inside]
    values = np.zeros(source.shape, box.dtype)
    values[inside] = storage.data[chosen]
    if box.rounds:
        values = layouts.nearest_tf32(values)
    if storage.written is not None and not storage.written[chosen].all():
        first = chosen[int(np.argmax(~storage.written[chosen]))]
        text = f"{view.element(int(first - view.start))}, which nothing has written, is copied"
        state.fault_of(lane, "read-before-write", line, view.name, text)
    storage.note_box(state, view, chosen, lane, line)
    _count(state, line, "tma", box, _sectors(box, source, inside))
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


def _count(state: State, line: int, op: str, box: Map, sectors: tuple[int, int]) -> None:
    if state.ledger.recording:
        bits = 8 * box.bytes
        state.ledger.tallies[Key(line, "global", op, box.name, bits)].add(1, Cost(1, *sectors, 1))


def _shared(state: State, line: int, op: str, tiles: View, box: Map) -> None:
    if state.ledger.recording:
        passes = -(-box.bytes // _WAVEFRONT)  # a row fills all banks, or several rows do
        state.ledger.tallies[Key(line, "shared", op, tiles.name, 8 * box.bytes)].add(1, Cost(1, passes, passes, 1))


def _places(state: State, line: int, tiles: View, i: int, box: Map, block: int, lane: int) -> Ints | None:
    """Where the box's elements lie among all blocks' tiles; None, and a fault, where it does not fit."""
    size = box.dtype.itemsize
    if i * size % _BOUNDARY:
        text = f"a box in {tiles.name} begins at {i}, which is no multiple of {_BOUNDARY} bytes"
        state.fault_of(lane, "misaligned", line, tiles.name, text)
        return None
    last = i + box.rows * box.swizzle // size
    if i < 0 or last > tiles.size:
        text = f"{tiles.name} is written at {i} to {last - 1}, its extent is {tiles.size}"
        state.fault_of(lane, "outside", line, tiles.name, text)
        return None
    address = layouts.swizzled(i * size + box.elements(), box.swizzle)
    storage: Tiles = tiles.storage
    return storage.flat(block, address // size).reshape(-1)


def _fill(
    state: State, line: int, tiles: View, i: int, box: Map, barrier: Barrier, values: NDArray[Any], lane: int
) -> None:
    places = _places(state, line, tiles, i, box, barrier.block, lane)
    if places is None:
        return
    _shared(state, line, "tma", tiles, box)
    state.engines.pipeline.filling(barrier.block, barrier.column, barrier.name, line)
    agent = Agent(lane // WARP, lane, line, "filled")
    tiles.storage.filled_by_engine(state, tiles, places, agent, barrier.column, barrier.phase + 1)
    tiles.storage.lay(places, box.rows, box.columns)
    known = state.engines.clocks.phases(lane)
    barrier.copies.append(Load(tiles.storage, places, values.reshape(-1), box.bytes, known))
    state.engines.loads.append((line, lane, barrier, tiles.name))


@on_engines
def tma_store2(state: State, line: int, box: Map, row: Value, column: Value, tiles: View, i: Value) -> None:
    """Begin copies of boxes to global memory, one for each active lane; nothing outside is written."""
    _require(state, line, tiles, box)
    engine = state.engines
    for lane in np.flatnonzero(state.mask.bits).tolist():
        block = int(state.block_number[lane])
        places = _places(state, line, tiles, at(as_offset(i), lane), box, block, lane)
        if places is None:
            continue
        target, inside = box.tile(at(row, lane), at(column, lane))
        own = engine.stores[lane]
        agent = Agent(lane // WARP, lane, line, "read by a bulk store")
        tiles.storage.read_by_engine(state, tiles, places, agent, STORE, own.committed + 1)
        kept = inside.reshape(-1)
        own.begin(Store(box, tiles.storage, places[kept], target.reshape(-1)[kept], lane, line))
        _count(state, line, "tma store", box, _sectors(box, target, inside))
        _shared(state, line, "tma store", tiles, box)


@on_engines
def tma_commit(state: State, line: int) -> None:
    for lane in np.flatnonzero(state.mask.bits).tolist():
        state.engines.stores[lane].committed += 1


def _register_wait(name: str) -> None:
    def wait(state: State, line: int, pending: Value) -> None:
        groups, clocks = one_number(state, line, name, pending), state.engines.clocks
        for lane in np.flatnonzero(state.mask.bits).tolist():
            if lane in state.engines.stores:
                done, warp = state.engines.stores[lane].finish(state, groups), lane // WARP
                known = np.zeros_like(clocks.known[warp])
                known[clocks.of(STORE, warp)] = done
                clocks.acquire_by(warp, 1 << lane % WARP, 0, known)  # others of its warp by its next syncwarp

    on_engines(wait, name)


_register_wait("tma_wait_read")
_register_wait("tma_wait")


def _register_load(name: str, axes: int, multicast: bool) -> None:
    def load(
        state: State, line: int, tiles: View, i: Value, map: Map, bars: Barriers, b: Value, *place: Value
    ) -> None:
        where, mask = (place[:-1], place[-1]) if multicast else (place, None)
        if len(where) != axes:
            raise TypeError(f"{name}() takes {axes} coordinates of a box, and {len(where)} are given")
        _load(state, line, tiles, i, map, bars, b, where, mask)

    on_engines(load, name)


_register_load("tma_load2", 2, multicast=False)
_register_load("tma_load2_multicast", 2, multicast=True)
_register_load("tma_load_im2col", 8, multicast=False)


def end(state: State) -> None:
    """All threads have ended: what is still under way is at fault."""
    for line, lane, barrier, name in state.engines.loads:
        if barrier.copies:
            text = f"a copy to {name}, counted at {barrier.name}, is under way when the block ends: {LEFT_OVER}"
            state.fault_of(lane, "copy-not-awaited", line, name, text)
    for lane, stores in state.engines.stores.items():
        for group, store in stores.under_way:
            what = "tma_wait_read" if group <= stores.committed else "tma_commit and no tma_wait_read"
            name = store.map.name
            text = f"a store to {name} is still under way when its thread ends: no {what} comes after it"
            state.fault_of(lane, "copy-not-awaited", store.line, name, text)
            store.carry_out(state)
