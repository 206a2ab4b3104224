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

from common.catalog import reference
from common.trace.cost import LEFT_OVER, SECTOR_BYTES, Bools, Cost, Ints, Key
from common.trace.hopper.mbarriers import Barriers, at, on_engines
from common.trace.hopper.tiles import STORE, Agent
from common.trace.hopper.wgmma import ROW, swizzled
from common.trace.state import State
from common.trace.values import Value
from common.trace.views import View, as_offset

_BOUNDARY = 128  # bytes, on which a box in shared memory begins
_OFFSETS = 32  # that a tap may have in im2col, from 0 on


class Map:
    """A tensor map, ``given``, as a kernel sees it; ``bytes`` count at a barrier, those outside the array too."""

    def __init__(self, view: View, given: Any) -> None:
        self.view, self.name, self.dtype, self.given = view, view.name, view.dtype, given
        self.rows, self.columns = map(int, given.box)
        self.bytes = self.rows * self.columns * int(self.dtype.itemsize)

    def elements(self, *where: int) -> tuple[Ints, Bools]:
        """Of a box at (row, column), or of im2col at (n, d, h, w, c, t, r, s): its elements in the storage, and which
        of them there are. Raises ValueError for a place that no such box has."""
        kind, count = self.given.kind, len(where)
        if count != (2 if kind == "tiled" else 8):
            raise ValueError(f"{self.name} is a map of kind {kind}, and this copy takes {count} coordinates")
        pixel = [where[0] + np.arange(self.rows)] if kind == "tiled" else self._walked(where[:4], where[5:])
        places = [*(index[:, None] for index in pixel), where[len(pixel)] + np.arange(self.columns)[None]]
        found: Any = self.view.start
        inside: Any = True
        for index, extent, stride in zip(places, self.view.shape, self.view.strides, strict=True):
            found = found + index * stride
            inside = inside & (index >= 0) & (index < extent)
        return found, inside

    def _walked(self, base: tuple[int, ...], taps: tuple[int, ...]) -> list[Ints]:
        """n, d, h and w of the box's pixels from the base pixel on: along w, then h, d and n, from the corner
        ``lower`` to before the extent plus ``upper``; to each ``taps`` is added."""
        if not all(0 <= offset < _OFFSETS for offset in taps):
            raise ValueError(f"the offsets {taps} of a tap must be from 0 to {_OFFSETS - 1}")
        given = self.given
        axes = list(zip(base[1:], given.lower, given.upper, given.strides, self.view.shape[1:4], taps, strict=True))
        counts, place = [], base[0]
        for first, low, high, step, extent, _ in axes:
            if not (low <= first < extent + high) or (first - low) % step:
                raise ValueError(f"the copy begins at the pixel (n, d, h, w) = {base}, where no window begins")
            counts.append(-(-(extent + high - low) // step))
            place = place * counts[-1] + (first - low) // step
        places = place + np.arange(self.rows)
        pixel: list[Ints] = []
        for (_, low, _, step, _, tap), count in zip(axes[::-1], counts[::-1], strict=True):
            pixel.insert(0, places % count * step + low + tap)
            places = places // count
        return [places, *pixel]


class Load(NamedTuple):
    """A box on its way to a block's shared memory; ``known``: what its thread knew, who began it."""

    tiles: View
    places: Ints
    values: NDArray[Any]
    known: Ints
    lane: int
    line: int


class Store(NamedTuple):
    map: Map
    tiles: View
    places: Ints
    target: Ints
    lane: int
    line: int

    def carry_out(self, state: State) -> None:
        """Read shared memory now, as late as it may be read, and write."""
        view, values = self.map.view, self.tiles.storage.data[self.places]
        view.storage.require_writable(state, view, self.line, self.lane)
        view.storage.put(state, view, self.target, np.full(len(self.target), self.lane), values, self.line)

    def left(self, state: State, committed: bool) -> None:
        """Its thread has ended, and not waited for it."""
        what = "tma_wait_read" if committed else "tma_commit and no tma_wait_read"
        text = f"a store to {self.map.name} is still under way when its thread ends: no {what} comes after it"
        state.fault_of(self.lane, "copy-not-awaited", self.line, self.map.name, text)
        self.carry_out(state)


def nearest_tf32(values: NDArray[Any]) -> NDArray[Any]:
    """Float32 as the copy engine rounds to TF32: to the nearest, ties to even (seen on an H200); NaN stays NaN."""
    return np.where(np.isnan(values), values, reference.nearest_tf32(values))


def _read(state: State, line: int, box: Map, source: Ints, inside: Bools, lane: int) -> NDArray[Any]:
    storage, view = box.view.storage, box.view
    chosen = source[inside]
    values = np.zeros(source.shape, box.dtype)
    values[inside] = storage.data[chosen]
    if storage.written is not None and not storage.written[chosen].all():
        first = chosen[int(np.argmax(~storage.written[chosen]))]
        text = f"{view.element(int(first - view.start))}, which nothing has written, is copied"
        state.fault_of(lane, "read-before-write", line, view.name, text)
    storage.note_read(state, view, chosen, np.full(len(chosen), lane), line)
    _count(state, line, "tma", box, chosen)
    return (nearest_tf32(values) if box.given.tf32 else values).reshape(-1)


def _count(state: State, line: int, op: str, box: Map, where: View | Ints) -> None:
    """A box in shared memory; or its elements in global memory: sectors touched, and the fewest that would do."""
    if not state.ledger.recording:
        return
    moved = ideal = -(-box.bytes // ROW)  # a row fills all banks, or several rows do
    space, name = ("shared", where.name) if type(where) is View else ("global", box.name)
    if type(where) is not View:
        size = box.dtype.itemsize
        moved = len(np.unique((box.view.storage.address + where * size) // SECTOR_BYTES))
        ideal = -(-where.size * size // SECTOR_BYTES)
    state.ledger.tallies[Key(line, space, op, name, 8 * box.bytes)].add(1, Cost(1, moved, ideal, 1))


def _places(state: State, line: int, tiles: View, i: Value, box: Map, block: int, lane: int) -> Ints | None:
    """Where the box's elements lie among all blocks' tiles, tiles[i] of this block first; None, and a fault, where it
    does not fit."""
    i, size = at(as_offset(i), lane), box.dtype.itemsize
    last, aligned = i + box.rows * box.columns, i * size % _BOUNDARY == 0
    if not aligned or i < 0 or last > tiles.size:
        text = f"{tiles.name} is written at {i} to {last - 1}, its extent is {tiles.size}"
        if not aligned:
            text = f"a box in {tiles.name} begins at {i}, which is no multiple of {_BOUNDARY} bytes"
        state.fault_of(lane, "outside" if aligned else "misaligned", line, tiles.name, text)
        return None
    address = swizzled(size * (i + np.arange(box.rows * box.columns)), box.columns * size)  # a row is as wide
    return np.asarray(address // size + block * tiles.storage.size)


def _load(
    state: State, line: int, tiles: View, i: Value, map: Map, bars: Barriers, b: Value, *place: Value,
    multicast: bool = False,
) -> None:  # fmt: skip
    """Copies, one for each active lane, to its own block or to those of its cluster that a mask, last, names; the
    place is (row, column), or (n, d, h, w, c, t, r, s)."""
    tiles.require(state, line, f"a copy of {map.name}", "shared", map.dtype)
    engine = state.engines
    for lane, number in bars.named(line, b, "used"):
        where = [at(value, lane) for value in place]
        own = int(state.block_number[lane])
        targets = engine.cluster_of(own, where.pop(), line, lane) if multicast else [own]
        try:
            found, inside = map.elements(*where)
        except ValueError as error:
            state.fault_of(lane, "operand", line, map.name, str(error))
            continue
        values = _read(state, line, map, found, inside, lane)
        for target in targets:
            barrier = bars.at(target, number)
            barrier.require_usable(lane, line)
            places = _places(state, line, tiles, i, map, target, lane)
            if places is None:
                continue
            _count(state, line, "tma", map, tiles)
            if not target:
                engine.pipeline.turn(barrier.column, "filling", line, barrier.name)
            agent = Agent(state, tiles, lane, line, "filled")
            tiles.storage.filled_by_engine(agent, places, map.columns, barrier.column, barrier.phase + 1)
            barrier.copies.append(Load(tiles, places, values, engine.clocks.phases(lane), lane, line))


on_engines(_load, "tma_load2")
on_engines(_load, "tma_load_im2col")
on_engines(partial(_load, multicast=True), "tma_load2_multicast")


@on_engines
def tma_store2(state: State, line: int, box: Map, row: Value, column: Value, tiles: View, i: Value) -> None:
    """Begin copies of boxes to global memory, one for each active lane; nothing outside is written."""
    tiles.require(state, line, f"a copy of {box.name}", "shared", box.dtype)
    for lane in np.flatnonzero(state.mask.bits).tolist():
        places = _places(state, line, tiles, i, box, int(state.block_number[lane]), lane)
        if places is None:
            continue
        target, inside = box.elements(at(row, lane), at(column, lane))
        own = state.engines.groups(STORE, lane)
        agent = Agent(state, tiles, lane, line, "read by a bulk store")
        tiles.storage.read_by_engine(agent, places, STORE, own.committed + 1)
        own.begin(Store(box, tiles, places[inside.reshape(-1)], target[inside], lane, line))
        _count(state, line, "tma store", box, target[inside])
        _count(state, line, "tma store", box, tiles)


def end(state: State) -> None:
    """Loads that nobody has waited for when their block ends are at fault."""
    for barrier in state.engines.by_column.values():
        for load in barrier.copies:
            name = load.tiles.name
            text = f"a copy to {name}, counted at {barrier.name}, is under way when the block ends: {LEFT_OVER}"
            state.fault_of(load.lane, "copy-not-awaited", load.line, name, text)
