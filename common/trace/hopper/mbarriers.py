"""Barriers in shared memory that count arrivals and bytes (mbarrier), and the copies of boxes (TMA) that bring these.

PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier"; "Data Movement and Conversion
Instructions: cp.async.bulk.tensor", "Tensors", "im2col mode". A phase is complete when as many threads have arrived
as the barrier was made for, and all bytes that it was told to expect; what those who arrived knew is known to those
who wait for it. A load arrives as late as it may: when somebody waits for its barrier, and nobody can go on without.
A store reads shared memory when its thread waits for that. The *pipeline* tells when each stage, what arrives at one
barrier that counts bytes, is filled, full, multiplied and free again. Its clock counts these events in one block: it
measures nothing.
"""

import itertools
from collections import Counter, defaultdict
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.catalog import reference
from common.trace.cost import LEFT_OVER, SECTOR_BYTES, WARP, Bools, Cost, Ints, Key
from common.trace.hopper.tiles import ROW, STORE, joined, swizzled
from common.trace.intrinsics import on_engines, one_number
from common.trace.messages import TracedSpan
from common.trace.races import Access
from common.trace.state import State
from common.trace.values import Value, spread
from common.trace.views import View, as_offset, within

_MOST_ARRIVALS = (1 << 20) - 1  # in a phase
_BOUNDARY = 128  # bytes, on which a box in shared memory begins
_OFFSETS = 32  # that a tap may have in im2col, from 0 on


def at(value: Value, lane: int) -> int:
    return int(value) if np.ndim(value) == 0 else int(value[lane])


class Barrier:
    """One barrier of one block. ``phase`` counts those that are complete."""

    def __init__(self, state: State, name: str, block: int) -> None:
        self.state, self.name, self.block, self.phase = state, name, block, 0
        self.arrivals = self.missing = 0  # of a phase, 0 until barrier_init; those of this one that have not come
        self.expected = self.arrived = 0  # bytes of this phase
        self.expected_in = 0  # the line of the last barrier_expect
        # boxes on their way whose bytes count in this phase, their values, and what the thread knew that began it
        self.copies: list[tuple[Access, NDArray[Any], Ints]] = []
        self.column = state.engines.clocks.column()
        state.engines.by_column[self.column] = self
        # by which warp, in which of its intervals, in which line (0: it was used before)
        self.made: tuple[int, int, int] | None = None
        self.published = False
        self.gathered: Ints = np.zeros(0, np.int64)  # what those know who have arrived in this phase
        self.known: Ints = np.zeros(self.column + 1, np.int64)  # what those knew who arrived in complete phases

    def make(self, warp: int, arrivals: int, line: int) -> None:
        self.arrivals = self.missing = arrivals
        self.made, self.published = (warp, int(self.state.engines.clocks.now[warp]), line), False

    def fault(self, lane: int, line: int, text: str, cause: str = "") -> None:
        self.state.fault("mbarrier", line, self.name, text, lane=lane, cause=cause)

    def require_usable(self, lane: int, line: int) -> None:
        """A fault unless it is made and published, and this lane knows it."""
        missing = "barriers that are not there"
        if self.made is None:
            self.fault(lane, line, f"{self.name} is used, and no barrier_init has made it", missing)
            self.make(lane // WARP, 1, 0)
        elif self.state.engines.clocks.known[lane, self.made[0]] < self.made[1]:
            text = f"{self.name} is used with no barrier of the block, or the cluster, after its barrier_init"
            self.fault(lane, line, text, missing)
        elif not self.published:
            self.fault(lane, line, f"{self.name} is used, and no publish_barriers follows its barrier_init", missing)

    def passed(self, parity: int) -> bool:
        """Is the phase of this parity complete, the last one that has it?"""
        return self.phase % 2 != parity % 2

    def arrive(self, lane: int, given: Ints, count: int, line: int) -> None:
        """An arrival, with what it hands over; it expects so many bytes more."""
        if self.state.engines.clocks.known[lane, self.column] < self.phase:
            text = f"an arrival at {self.name} may come in the phase before: nothing that this thread has waited for "
            text += f"says that its {self.arrivals} arrivals, and its bytes, have come"
            self.fault(lane, line, text)
        if not self.missing:
            still = f", and {self.expected - self.arrived} bytes have not" if self.expected else ""
            came = f"all {self.arrivals} arrivals of the phase have come{still}"
            self.fault(lane, line, f"one arrival at {self.name} is too many: {came}")
            return
        self.expected, self.expected_in = self.expected + count, line
        self.missing -= 1
        self.gathered = joined(self.gathered, given)
        self._complete()

    def deliver(self) -> bool:
        """Let the bytes arrive that alone are missing; False if there are none."""
        if self.missing or not self.copies:
            return False
        copies, self.copies = self.copies, []
        for access, values, known in copies:
            access.view.storage.arrive(access.at, values)
            self.gathered = joined(self.gathered, known)
            self.arrived += values.nbytes
        self._complete()
        return True

    def _complete(self) -> None:
        if self.missing or self.arrived < self.expected:
            return
        if self.arrived > self.expected:
            text = f"{self.arrived} bytes arrive at {self.name} in a phase that expects {self.expected}"
            self.fault(self.block * self.state.lanes_per_block, self.expected_in, text)
        self.phase += 1
        if self.arrived:
            self.state.engines.pipeline.turn(self.column, "full")
        self.missing, self.expected, self.arrived = self.arrivals, 0, 0
        self.known = joined(self.known, self.gathered)
        self.known[self.column] = self.phase
        self.gathered = np.zeros(0, np.int64)

    def lacks(self) -> str:
        text = f"{self.arrivals - self.missing} of {self.arrivals} arrivals have come"
        where = f" that line {self.expected_in} expects" if self.expected else ""
        some = self.expected or self.arrived
        return text + f" and {self.arrived} of {self.expected} bytes{where}" if some else text


class Barriers:
    ndim = 1

    def __init__(self, state: State, count: int) -> None:
        self.state, self.size, self.name = state, count, ""
        self.known: dict[tuple[int, int], Barrier] = {}  # by block and number

    def at(self, block: int, i: int) -> Barrier:
        if (block, i) not in self.known:
            self.known[block, i] = Barrier(self.state, f"{self.name}[{i}]", block)
        return self.known[block, i]

    def named(self, line: int, i: Value, verb: str) -> list[tuple[int, int, int]]:
        """The active lanes, their blocks, and the barrier that each names; one beyond the array is a fault."""
        numbers, wrong = within(self.state, i, self.size, line, self, None, verb)
        lanes = np.flatnonzero(self.state.among(wrong))
        every = lanes, self.state.block_number[lanes], spread(numbers, self.state.mask.bits.shape)[lanes]
        return list(zip(*(each.tolist() for each in every), strict=True))


def _by_warp(lanes: list[int]) -> dict[int, list[int]]:
    return {warp: list(own) for warp, own in itertools.groupby(lanes, lambda lane: lane // WARP)}


# --- the toolkit's functions for them ---


@on_engines
def barrier_wait(state: State, line: int, bars: Barriers, i: Value, parity: Value) -> None:
    waiting: defaultdict[tuple[Barrier, int], list[int]] = defaultdict(list)  # lanes, by barrier and parity
    for lane, block, number in bars.named(line, i, "waited for"):
        bit = at(parity, lane)
        if bit not in (0, 1):
            state.fault("operand", line, bars.name, f"the parity of a phase is 0 or 1, and this is {bit}", lane=lane)
        waiting[bars.at(block, number), bit & 1].append(lane)
    for (barrier, _), lanes in waiting.items():
        for own in _by_warp(lanes).values():
            barrier.require_usable(own[0], line)
    if waiting:
        state.engines.teams.wait(line, "phases", list(waiting))
    for (barrier, _), lanes in waiting.items():
        state.engines.clocks.acquire(lanes, barrier.known)


def _arrive(state: State, line: int, bars: Barriers, i: Value, count: Value = 0, rank: Value | None = None) -> None:
    """The active lanes arrive, each at the barrier that it names: of its block, or of that rank in its cluster."""
    engine, named = state.engines, bars.named(line, i, "used")
    given = {warp: engine.clocks.release(own) for warp, own in _by_warp([lane for lane, *_ in named]).items()}
    for lane, block, number in named:
        to = [block]
        if rank is not None:
            other = at(rank, lane)
            to = engine.cluster_of(block, 1 << other if 0 <= other <= 16 else 0, line, lane)
        for barrier in [bars.at(target, number) for target in to]:
            barrier.require_usable(lane, line)
            if barrier.block != block:
                engine.remote[line, lane, barrier.block] = engine.syncs, barrier.column, barrier.phase + 1
            barrier.arrive(lane, given[lane // WARP], at(count, lane), line)


on_engines(_arrive, "barrier_expect")
on_engines(_arrive, "barrier_arrive")
on_engines(lambda state, line, bars, i, rank: _arrive(state, line, bars, i, rank=rank), "barrier_arrive_at")


@on_engines
def barrier_array(state: State, line: int, count: Value) -> Barriers:
    known: dict[object, Barriers] = state.engines.barriers
    return known.setdefault(state.here(), Barriers(state, one_number(state, line, "barrier_array", count)))


@on_engines
def barrier_init(state: State, line: int, bars: Barriers, i: Value, arrivals: Value) -> None:
    for lane, block, number in bars.named(line, i, "made"):
        barrier, count = bars.at(block, number), at(arrivals, lane)
        if barrier.made and barrier.made[2]:
            barrier.fault(lane, line, f"{barrier.name} is made again: it was made in line {barrier.made[2]}")
        elif not 1 <= count <= _MOST_ARRIVALS:
            text = f"{barrier.name} is to wait for {count} arrivals, which must be from 1 to {_MOST_ARRIVALS}"
            barrier.fault(lane, line, text)
        barrier.make(lane // WARP, max(count, 1), line)


@on_engines
def publish_barriers(state: State, line: int) -> None:
    warps = set((np.flatnonzero(state.mask.bits) // WARP).tolist())
    for barrier in state.engines.by_column.values():
        if barrier.made and barrier.made[0] in warps:
            barrier.published = True


# --- copies of boxes ---


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
        ``lower`` to before the extent plus ``upper``; ``taps`` are added."""
        if not all(0 <= offset < _OFFSETS for offset in taps):
            raise ValueError(f"the offsets {taps} of a tap must be from 0 to {_OFFSETS - 1}")
        given, extents = self.given, self.view.shape[1:4]
        low, high, step, extent, tap = np.array([given.lower, given.upper, given.strides, extents, taps])
        first, room = np.array(base[1:]) - low, extent + high - low
        if ((first < 0) | (first >= room) | (first % step != 0)).any():
            raise ValueError(f"the copy begins at the pixel (n, d, h, w) = {base}, where no window begins")
        windows = (self.rows + 1, *-(-room // step))
        place = np.ravel_multi_index((0, *first // step), windows) + np.arange(self.rows)
        n, *window = np.unravel_index(place, windows)
        return [base[0] + n, *(np.array(window) * step[:, None] + (low + tap)[:, None])]


def _read(state: State, line: int, box: Map, source: Ints, inside: Bools, lane: int) -> NDArray[Any]:
    storage, view = box.view.storage, box.view
    chosen = source[inside]
    values = np.zeros(source.shape, box.dtype)
    values[inside] = storage.data[chosen]
    if storage.written is not None and not storage.written[chosen].all():
        first = chosen[int(np.argmax(~storage.written[chosen]))]
        text = f"{view.element(int(first - view.start))}, which nothing has written, is copied"
        state.fault("read-before-write", line, view.name, text, lane=lane)
    storage.note(state, view, "read", chosen, np.full(len(chosen), lane), line)
    _count(state, line, "tma", box, chosen)
    return (reference.nearest_tf32(values) if box.given.tf32 else values).reshape(-1)


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
    i, size, count = at(as_offset(i), lane), box.dtype.itemsize, box.rows * box.columns
    if i * size % _BOUNDARY:
        text = f"a box in {tiles.name} begins at {i}, which is no multiple of {_BOUNDARY} bytes"
        state.fault("misaligned", line, tiles.name, text, lane=lane)
    elif i < 0 or i + count > tiles.size:
        text = f"{tiles.name} is written at {i} to {i + count - 1}, its extent is {tiles.size}"
        state.fault("outside", line, tiles.name, text, lane=lane)
    else:
        address = swizzled(size * (i + np.arange(count)), box.columns * size)  # a row is as wide
        return np.asarray(address // size + block * tiles.storage.size)
    return None


def _load(
    state: State, line: int, tiles: View, i: Value, map: Map, bars: Barriers, b: Value, *place: Value,
    multicast: bool = False,
) -> None:  # fmt: skip
    """Copies, one for each active lane, to its own block or to those of its cluster that a mask, last, names; the
    place is (row, column), or (n, d, h, w, c, t, r, s)."""
    tiles.require(state, line, f"a copy of {map.name}", "shared", map.dtype)
    engine = state.engines
    for lane, block, number in bars.named(line, b, "used"):
        where = [at(value, lane) for value in place]
        targets = engine.cluster_of(block, where.pop(), line, lane) if multicast else [block]
        try:
            found, inside = map.elements(*where)
        except ValueError as error:
            state.fault("operand", line, map.name, str(error), lane=lane)
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
            access = Access("filled", state, tiles, places, lane, line, state.stamps)
            tiles.storage.filled_by_engine(access, map.columns, barrier.column, barrier.phase + 1)
            barrier.copies.append((access, values, engine.clocks.phases(lane)))


on_engines(_load, "tma_load2")
on_engines(_load, "tma_load_im2col")
on_engines(partial(_load, multicast=True), "tma_load2_multicast")


def _leave(access: Access, view: View, target: Ints) -> None:
    """Read shared memory now, as late as it may be read, and write."""
    state, lane, values = access.state, access.lanes, access.view.storage.data[access.at]
    view.storage.require_writable(state, view, access.line, lane)
    view.storage.put(state, view, target, np.full(len(target), lane), values, access.line)


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
        access = Access("read by a bulk store", state, tiles, places, lane, line, state.stamps)
        tiles.storage.read_by_engine(access, own)
        access, target = access._replace(at=places[inside.reshape(-1)]), target[inside]
        own.begin(f"a store to {box.name}", box.name, line, partial(_leave, access, box.view, target))
        _count(state, line, "tma store", box, target)
        _count(state, line, "tma store", box, tiles)


def end(state: State) -> None:
    """Loads that nobody has waited for when their block ends are at fault."""
    for barrier in state.engines.by_column.values():
        for access, *_ in barrier.copies:
            name = access.view.name
            text = f"a copy to {name}, counted at {barrier.name}, is under way when the block ends: {LEFT_OVER}"
            state.fault("copy-not-awaited", access.line, name, text, lane=access.lanes)


# --- the pipeline over time ---

MARKS: dict[str, str] = {"filling": "~", "full": "=", "multiplied": "#", "free": "."}
_MOST = 2048  # events that are kept


class Pipeline:
    """What happens to the stages of one block, by column of their barriers; nothing is kept unless ``recording``."""

    def __init__(self, recording: bool) -> None:
        self.recording, self.clock = recording, 0
        self.stages: defaultdict[int, list[TracedSpan]] = defaultdict(list)  # the last span of each goes on
        self.reads: Counter[int] = Counter()  # products under way that read a stage

    def turn(self, column: int, state: str, line: int = 0, name: str = "") -> None:
        """A stage is ``filling``, ``full``, ``multiplied`` as one more product reads it, or ``free`` as one has."""
        own = self.stages[column]
        before = own[-1].state if own else ""
        self.reads[column] += {"multiplied": 1, "free": -1}.get(state, 0)
        if state == "multiplied" and before == "free":  # it goes on
            own.pop()
            return
        begins = {
            "filling": self.recording and before != "filling" and self.clock < _MOST, "full": before == "filling",
            "multiplied": before not in ("", "multiplied"), "free": before != "" and not self.reads[column],
        }  # fmt: skip
        if begins[state]:
            self.clock += 1
            for last in own[-1:]:
                last.end, name = self.clock, last.stage
            line = line or next(one.line for one in own[::-1] if one.state == "filling")
            own.append(TracedSpan(name, state, self.clock, 0, line))

    def spans(self) -> list[TracedSpan]:
        for own in filter(None, self.stages.values()):
            own[-1].end = self.clock + 1
        return [span for own in self.stages.values() for span in own]


def drawn(spans: list[TracedSpan], width: int) -> list[str]:
    """The stages as text, one a line, a character for each tick; as much of the beginning as ``width`` holds."""
    label = max((len(span.stage) for span in spans), default=0) + 2
    ticks = min(max((span.end for span in spans), default=1), max(width - label, 8))
    rows: dict[str, str] = {}
    for span in spans:
        row = rows.setdefault(span.stage, " " * (span.start - 1))
        rows[span.stage] = row + MARKS[span.state] * (span.end - span.start)
    return [stage.ljust(label) + row[: ticks - 1].rstrip() for stage, row in rows.items()]
