"""The copy engine (TMA): boxes of arrays that tensor maps describe, to shared memory and back.

A load arrives as late as it may: when somebody waits for the barrier that its bytes count at, and nobody can go on
without. A store reads shared memory when its thread waits for that. PTX ISA, "Data Movement and Conversion
Instructions: cp.async.bulk.tensor", "Tensors", "im2col mode".
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.trace.cost import LEFT_OVER, SECTOR_BYTES, WARP, Bools, Cost, Ints, Key
from common.trace.hopper import layouts, mbarriers
from common.trace.hopper.mbarriers import Barriers, at, on_engines
from common.trace.hopper.tiles import STORE, Agent, Tiles
from common.trace.intrinsics import one_number
from common.trace.state import State
from common.trace.values import Value
from common.trace.views import View, as_offset

_BOUNDARY = 128  # bytes, on which a box in shared memory begins
_WAVEFRONT = 128  # bytes that shared memory takes at a time


class Map:
    """A tensor map as a kernel sees it; ``bytes`` are those that count at a barrier, outside the array too."""

    def __init__(self, view: View, given: Any) -> None:
        self.view, self.name, self.dtype = view, view.name, view.dtype
        self.kind, self.swizzle = given.kind, int(given.swizzle)
        self.rows, self.columns = map(int, given.box)
        self.lower, self.upper, self.strides = given.lower, given.upper, given.strides
        self.rounds = bool(getattr(given, "tf32", False))
        self.bytes = self.rows * self.columns * int(self.dtype.itemsize)

    def elements(self, *where: int) -> tuple[Ints, Bools]:
        """Of a box at (row, column), or of im2col at (n, d, h, w, c, t, r, s): its elements in the storage, and which
        of them there are. Raises ValueError for a place that no such box has."""
        count, tap = len(where), where[5:]
        if (self.kind == "tiled") != (count == 2):
            raise ValueError(f"{self.name} is a map of kind {self.kind}, and this copy takes {count} coordinates")
        if not all(0 <= offset < layouts.OFFSETS for offset in tap):
            raise ValueError(f"the offsets {tap} of a tap must be from 0 to {layouts.OFFSETS - 1}")
        pixel = [where[0] + np.arange(self.rows)]
        if count > 2:
            pixel = layouts.walked(self.view.shape, self, self.rows, where[:4], tap)
        places = [*(index[:, None] for index in pixel), where[len(pixel)] + np.arange(self.columns)[None]]
        found: Any = self.view.start
        inside: Any = True
        for index, extent, stride in zip(places, self.view.shape, self.view.strides, strict=True):
            found = found + index * stride
            inside = inside & (index >= 0) & (index < extent)
        return found, inside


class Load(NamedTuple):
    """A box on its way to a block's shared memory; ``known``: what its thread knew, who began it."""

    tiles: View
    places: Ints
    values: NDArray[Any]
    bytes: int
    known: Ints
    lane: int
    line: int


class Store(NamedTuple):
    map: Map
    tiles: Tiles
    places: Ints
    target: Ints
    lane: int
    line: int

    def carry_out(self, state: State) -> None:
        """Read shared memory now, as late as it may be read, and write."""
        view, values = self.map.view, self.tiles.data[self.places]
        view.storage.require_writable(state, view, self.line, self.lane)
        view.storage.put(state, view, self.target, np.full(len(self.target), self.lane), values, self.line)


def _read(state: State, line: int, box: Map, source: Ints, inside: Bools, lane: int) -> NDArray[Any]:
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
    storage.note_read(state, view, chosen, np.full(len(chosen), lane), line)
    _count(state, line, "tma", box, chosen)
    return values


def _count(state: State, line: int, op: str, box: Map, where: View | Ints) -> None:
    """A box in shared memory; or its elements in global memory: sectors touched, and the fewest that would do."""
    if not state.ledger.recording:
        return
    moved = ideal = -(-box.bytes // _WAVEFRONT)  # a row fills all banks, or several rows do
    space, name = ("shared", where.name) if type(where) is View else ("global", box.name)
    if type(where) is not View:
        size = box.dtype.itemsize
        moved = len(np.unique((box.view.storage.address + where * size) // SECTOR_BYTES))
        ideal = -(-where.size * size // SECTOR_BYTES)
    state.ledger.tallies[Key(line, space, op, name, 8 * box.bytes)].add(1, Cost(1, moved, ideal, 1))


def _places(state: State, line: int, tiles: View, i: int, box: Map, block: int, lane: int) -> Ints | None:
    """Where the box's elements lie among all blocks' tiles; None, and a fault, where it does not fit."""
    size = box.dtype.itemsize
    last, aligned = i + box.rows * box.swizzle // size, i * size % _BOUNDARY == 0
    if not aligned or i < 0 or last > tiles.size:
        text = f"{tiles.name} is written at {i} to {last - 1}, its extent is {tiles.size}"
        if not aligned:
            text = f"a box in {tiles.name} begins at {i}, which is no multiple of {_BOUNDARY} bytes"
        state.fault_of(lane, "outside" if aligned else "misaligned", line, tiles.name, text)
        return None
    rows, columns = np.arange(box.rows)[:, None], np.arange(box.columns)[None]
    address = layouts.swizzled(i * size + rows * box.swizzle + columns * size, box.swizzle)
    return np.asarray(address // size + block * tiles.storage.size).reshape(-1)


def _load(
    state: State, line: int, tiles: View, i: Value, map: Map, bars: Barriers, b: Value, *place: Value, name: str,
    axes: int, multicast: bool = False,
) -> None:  # fmt: skip
    """Copies, one for each active lane, to its own block or to those of its cluster that a mask names; the place is
    (row, column), or (n, d, h, w, c, t, r, s)."""
    if len(place) != axes + multicast:
        raise TypeError(f"{name}() takes {axes} coordinates of a box, and {len(place) - multicast} are given")
    tiles.require(state, line, f"a copy of {map.name}", "shared", map.dtype)
    engine = state.engines
    for lane, number in bars.named(line, b, "used"):
        where = [at(value, lane) for value in place]
        try:
            found, inside = map.elements(*where[:axes])
        except ValueError as error:
            state.fault_of(lane, "operand", line, map.name, str(error))
            continue
        values = _read(state, line, map, found, inside, lane).reshape(-1)
        own = int(state.block_number[lane])
        for target in engine.cluster_of(own, where[-1], line, lane) if multicast else [own]:
            barrier = bars.at(target, number)
            mbarriers.usable(state, line, barrier, lane)
            places = _places(state, line, tiles, at(as_offset(i), lane), map, target, lane)
            if places is None:
                continue
            _count(state, line, "tma", map, tiles)
            engine.pipeline.filling(target, barrier.column, barrier.name, line)
            agent = Agent(state, tiles, lane, line, "filled")
            tiles.storage.filled_by_engine(agent, places, map.columns, barrier.column, barrier.phase + 1)
            known = engine.clocks.phases(lane)
            barrier.copies.append(Load(tiles, places, values, map.bytes, known, lane, line))


for _name, _axes in {"tma_load2": 2, "tma_load2_multicast": 2, "tma_load_im2col": 8}.items():
    on_engines(partial(_load, name=_name, axes=_axes, multicast=_name.endswith("multicast")), _name)


@on_engines
def tma_store2(state: State, line: int, box: Map, row: Value, column: Value, tiles: View, i: Value) -> None:
    """Begin copies of boxes to global memory, one for each active lane; nothing outside is written."""
    tiles.require(state, line, f"a copy of {box.name}", "shared", box.dtype)
    engine = state.engines
    for lane in np.flatnonzero(state.mask.bits).tolist():
        block = int(state.block_number[lane])
        places = _places(state, line, tiles, at(as_offset(i), lane), box, block, lane)
        if places is None:
            continue
        target, inside = box.elements(at(row, lane), at(column, lane))
        own = engine.stores[lane]
        agent = Agent(state, tiles, lane, line, "read by a bulk store")
        tiles.storage.read_by_engine(agent, places, STORE, own.committed + 1)
        kept = inside.reshape(-1)
        own.begin(Store(box, tiles.storage, places[kept], target.reshape(-1)[kept], lane, line))
        _count(state, line, "tma store", box, target[inside])
        _count(state, line, "tma store", box, tiles)


@on_engines
def tma_commit(state: State, line: int) -> None:
    for lane in np.flatnonzero(state.mask.bits).tolist():
        state.engines.stores[lane].committed += 1


def _wait(state: State, line: int, pending: Value, *, name: str) -> None:
    groups, clocks = one_number(state, line, name, pending), state.engines.clocks
    for lane in np.flatnonzero(state.mask.bits).tolist():
        if lane in state.engines.stores:
            done = state.engines.stores[lane].finish(state, groups)
            clocks.acquire([lane], clocks.done(STORE, lane // WARP, done))


for _name in "tma_wait_read", "tma_wait":
    on_engines(partial(_wait, name=_name), _name)


def end(state: State) -> None:
    for barrier in state.engines.by_column.values():
        for load in barrier.copies:
            name = load.tiles.name
            text = f"a copy to {name}, counted at {barrier.name}, is under way when the block ends: {LEFT_OVER}"
            state.fault_of(load.lane, "copy-not-awaited", load.line, name, text)
    for lane, stores in state.engines.stores.items():
        for group, store in stores.under_way:
            what = "tma_wait_read" if group <= stores.committed else "tma_commit and no tma_wait_read"
            name = store.map.name
            text = f"a store to {name} is still under way when its thread ends: no {what} comes after it"
            state.fault_of(lane, "copy-not-awaited", store.line, name, text)
            store.carry_out(state)
