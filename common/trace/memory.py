"""The memories that all threads of a block share, global and constant: each access is checked and recorded."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.catalog import limits
from common.trace import views
from common.trace.cost import PAST_L1, SECTOR_BYTES, WARP, Bools, Cost, Ints, Key
from common.trace.messages import TracedEvent, TracedRequest
from common.trace.races import Shadow
from common.trace.state import Log, State
from common.trace.values import Value, cast, choose
from common.trace.views import Offsets, View, beyond

Array = NDArray[Any]

_WARPS_KEPT = 4  # of one access, so that later rounds of a loop are kept, too
POISON = 0xA5  # every byte of an integer that nothing has written


class Storage:
    """Elements of one dtype, and which of them hold a value (None: all do)."""

    space = ""
    unset_look_at = ""  # what one who reads what nothing has written is to look at

    def __init__(self, data: Array, written: Bools | None, alignment: int) -> None:
        self.data, self.written, self.alignment = data, written, alignment
        self.dtype = data.dtype

    def require_aligned(self, state: State, view: View, place: Offsets, width: int, line: int) -> None:
        """A fault unless the accessed elements start at a multiple of their size in bytes."""
        size = width * self.dtype.itemsize
        bad = (self._position(place) & (size - 1)) != 0
        lanes = np.count_nonzero(bad & state.mask.bits)
        if self.alignment % size and not lanes:
            text = f"{8 * size}-bit access to {view.name}, whose start is aligned to {self.alignment} bytes only"
            state.fault("misaligned", line, view.name, text)
        elif lanes:
            first = state.first(place - view.start, bad)
            text = f"{8 * size}-bit access to {view.element(first)}, whose address is no multiple of {size} bytes"
            state.fault("misaligned", line, view.name, text, bad)

    def _position(self, place: Offsets) -> Any:
        """Bytes from a boundary that the storage's alignment vouches for."""
        return place * self.dtype.itemsize

    @property
    def blank(self) -> Any:
        """What stands where nothing was written, as far as a value can tell."""
        return np.nan if self.dtype.kind == "f" else 0

    def _missing(self, state: State, view: View, place: Any, at: Any, line: int, changes: bool = False) -> None:
        """Remember the active lanes that read (or change) what nothing has written, ``at`` in the storage."""
        if self.written is None:
            return
        have = self.written.take(at, mode="clip")
        if np.count_nonzero(have) < np.size(have):
            lanes = state.mask.bits & ~have
            if np.count_nonzero(lanes):
                nan = self.dtype.kind == "f" and not changes
                views.read_unwritten(state, line, view, place - view.start, lanes, nan)


class Global(Storage):
    """One allocation in global memory. ``address`` is its first byte's."""

    space = "global"
    unset_look_at = "what this line reads: a launch finds in its output, and in what it allocates, nothing of use"

    def __init__(self, data: Array, written: Bools | None, address: int) -> None:
        super().__init__(data, written, 256)
        self.address = address
        self._log: Log | None = None  # of the launch
        self._shadow: Shadow | None = None
        self._watched = False  # may the kernel write here
        self.read_only = False  # an input of the step
        self.pitch = self.dtype.itemsize  # bytes from an element to the next

    def require_writable(self, state: State, view: View, line: int, lane: int | None = None) -> None:
        """A fault if kernels are only to read this, even where what they write is what was there, or comes back."""
        if self.read_only:
            text = f"{view.name} is an input of the step, which kernels only read"
            state.fault("input-written", line, view.name, text, lane=lane)

    def begin(self, log: Log, watched: bool) -> None:
        """A launch begins that may write here, if ``watched``, through one of its arguments."""
        if self._log is not log:
            self._log, self._shadow, self._watched = log, None, False
            if self.written is not None and self.written.all():
                self.written = None
        self._watched = self._watched or watched

    def forget(self) -> None:
        """The launch begins anew."""
        self._log = self._shadow = None

    def shadow(self, state: State) -> Shadow:
        if self._log is not state.log:  # no argument is this array: the kernel has it from a tuple or a closure
            self.begin(state.log, True)
        if self._shadow is None:
            assert self._log is not None
            self._shadow = Shadow(len(self.data), self._log)
        return self._shadow

    def _position(self, place: Offsets) -> Any:
        return self.address + place * self.pitch

    def read(
        self, state: State, view: View, place: Offsets, width: int, wrong: Bools | None, line: int,
        op: str = "read",
    ) -> list[Value]:  # fmt: skip
        wrong = beyond(state, view, place, width, wrong, line, "read")
        self.record(state, view, place, width, op, line, wrong)
        places = [place + v for v in range(width)] if width > 1 else [place]
        if self._watched:
            lanes = state.among(wrong)
            for at in places:
                shadow = self.shadow(state)
                shadow.read(state, view, picked(at, lanes), shadow.moment(state, lanes, line))
        if self.written is not None:
            for at in places:
                self._missing(state, view, at, at, line)
        values = [self.data.take(at, mode="clip") for at in places]
        return values if wrong is None else [choose(wrong, self.dtype.type(self.blank), value) for value in values]

    def write(
        self, state: State, view: View, place: Offsets, values: list[Value], wrong: Bools | None, line: int
    ) -> None:
        wrong = beyond(state, view, place, len(values), wrong, line, "written")
        self.record(state, view, place, len(values), "write", line, wrong)
        lanes = state.among(wrong)
        self._watched = True
        self.require_writable(state, view, line)
        for v, value in enumerate(values):
            views.reveal_unwritten(state, value, line, view)
            places, chosen = ordered(state, place + v, value, lanes, self.dtype)
            self._put(state, view, places, lanes, chosen, line)

    def note_box(self, state: State, view: View, places: Ints, lane: int, line: int) -> None:
        """A copy that a thread has begun reads these elements."""
        if self._watched:
            shadow = self.shadow(state)
            shadow.read(state, view, places, shadow.moment(state, np.full(len(places), lane), line))

    def write_box(self, state: State, view: View, places: Ints, values: Array, lane: int, line: int) -> None:
        """A copy that a thread has begun writes these elements."""
        self.require_writable(state, view, line, lane)
        self._watched = True
        self._put(state, view, places, np.full(len(places), lane), values, line)

    def _put(self, state: State, view: View, places: Ints, lanes: Any, values: Any, line: int) -> None:
        shadow = self.shadow(state)
        now = shadow.moment(state, lanes, line)
        shadow.write(state, view, places, values, self.data, now.backward() if state.reversed else now)
        self.data[places] = values
        if self.written is not None:
            self.written[places] = True

    def begin_atomic(
        self, state: State, view: View, place: Offsets, lanes: Bools, wrong: Bools | None, line: int, fresh: bool
    ) -> Ints:
        """Note an atomic operation; returns the elements by lane."""
        self.record(state, view, place, 1, "atomic", line, wrong)
        self._watched = True
        self.require_writable(state, view, line)
        at = np.broadcast_to(np.asarray(place), lanes.shape)
        if not fresh:
            self._missing(state, view, place, at, line, changes=True)
        shadow = self.shadow(state)
        places, now = at[lanes], shadow.moment(state, lanes, line)
        if state.reversed:
            places, now = places[::-1], now.backward()
        shadow.atomic(state, view, places, now)
        state.log.meet(now.who, now.stamps, now.event)
        return at

    def record(
        self, state: State, view: View, place: Offsets, width: int, op: str, line: int, wrong: Bools | None
    ) -> None:
        ledger, mask = state.ledger, state.mask
        if not ledger.recording:
            return
        size = self.dtype.itemsize
        kind = "copy" if op == PAST_L1 else op
        tally = ledger.tallies[Key(line, self.space, kind, view.name, 8 * size * width)]
        if type(place) is int and wrong is None:
            cost = Cost(mask.warps, mask.warps, mask.warps, mask.warps)
            accesses = mask.count
        else:
            lanes = mask.bits if wrong is None else mask.bits & ~wrong
            place = np.broadcast_to(place, lanes.shape)
            cost = ledger.cost("global", self.address + place * self.pitch, lanes, size * width, op)
            accesses = int(np.count_nonzero(lanes))
        tally.add(accesses, cost)
        if len(tally.seen) < ledger.kept:
            asked = self.address % SECTOR_BYTES + np.broadcast_to(place, mask.bits.shape) * self.pitch
            keep(state, tally, asked, mask.bits if wrong is None else mask.bits & ~wrong)
        observe(state, tally, view, place - view.start, width, kind, line)


class Constant(Storage):
    """An array in constant memory: one word is broadcast, different words are read one after the other."""

    space = "constant"

    def __init__(self, data: Array) -> None:
        super().__init__(data, None, 16)

    def read(
        self, state: State, view: View, place: Offsets, width: int, wrong: Bools | None, line: int
    ) -> list[Value]:
        require_constants(state)
        ledger, mask = state.ledger, state.mask
        if ledger.recording:
            key = Key(line, self.space, "read", view.name, 8 * self.dtype.itemsize)
            turns = mask.warps
            if type(place) is not int:
                rows = np.where(mask.bits, place, -1).reshape(-1, WARP)
                turns = sum(len(set(row.tolist()) - {-1}) for row in rows)
            tally = ledger.tallies[key]
            tally.add(mask.count, Cost(mask.warps, turns, mask.warps, turns))
            if len(tally.seen) < ledger.kept:
                keep(state, tally, np.broadcast_to(place, mask.bits.shape) * self.dtype.itemsize, mask.bits)
        value = self.data.take(place, mode="clip")
        return [value if wrong is None else choose(wrong, self.dtype.type(0), value)]

    def write(
        self, state: State, view: View, place: Offsets, values: list[Value], wrong: Bools | None, line: int
    ) -> None:
        raise state.error(line, f"{view.name} lies in constant memory: a kernel cannot write it")


# --- what accesses have in common ---


def keep(state: State, tally: Any, places: Ints, lanes: Bools) -> None:
    """Keep the requests of a few warps: where each lane asks, in bytes."""
    rows, bits = places.reshape(-1, WARP), lanes.reshape(-1, WARP)
    for warp in np.flatnonzero(bits.any(axis=1))[:_WARPS_KEPT]:
        if len(tally.seen) < state.ledger.kept:
            asked = [int(p) if on else None for p, on in zip(rows[warp], bits[warp], strict=True)]
            tally.seen.append(TracedRequest(int(warp), asked))


def observe(state: State, tally: Any, view: View, place: Offsets, width: int, op: str, line: int) -> None:
    """Keep the first request's offsets, and every access to a watched array by the first block."""
    if tally.sample is None:
        rows = state.mask.bits.reshape(-1, WARP)
        warp = int(np.argmax(rows.sum(axis=1)))
        places = np.broadcast_to(place, state.mask.bits.shape).reshape(-1, WARP)[warp]
        tally.sample = [int(p) if on else None for p, on in zip(places, rows[warp], strict=True)]
    if view.name in state.ledger.watched:
        lanes = state.mask.bits & (state.lane_numbers < state.lanes_per_block)
        places = np.broadcast_to(place, lanes.shape)[lanes]
        threads = state.lane_numbers[lanes].tolist()
        state.ledger.events.append(TracedEvent(line, op, view.name, width, places.tolist(), threads))


def picked(at: Any, lanes: Bools) -> Any:
    if isinstance(at, np.ndarray) and at.shape == lanes.shape:
        return at if lanes.all() else at[lanes]
    return np.full(np.count_nonzero(lanes), at)


def ordered(state: State, at: Any, value: Any, lanes: Bools, dtype: np.dtype[Any]) -> tuple[Ints, Any]:
    """Where the active lanes write, and what: of two that write one element, the second wins."""
    places = picked(at, lanes)
    chosen = picked(cast(value, dtype), lanes)
    return (places[::-1], chosen[::-1]) if state.reversed else (places, chosen)


def require_constants(state: State) -> None:
    """Raise LaunchLimitError unless the host arrays that the kernel names fit constant memory together."""
    limits.require_constant(sum(array.nbytes for array in state.constants.values()))


def poisoned(size: int, dtype: np.dtype[Any]) -> Array:
    """Memory as nobody should take it to be: NaN, or numbers far from zero."""
    data = np.empty(size, dtype)
    poison(data)
    return data


def poison(data: Array) -> None:
    for name in data.dtype.names or ():
        poison(data[name])
    if data.dtype.names:
        return
    data[...] = np.frombuffer(bytes([POISON]) * data.dtype.itemsize, data.dtype)[0] if data.dtype.kind in "iu" else (
        True if data.dtype.kind == "b" else np.nan
    )  # fmt: skip
