"""Global and constant memory, and arrays of records: each access is checked and recorded."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.catalog import limits
from common.trace import views
from common.trace.cost import COUNTED_AS, SECTOR_BYTES, WARP, Bools, Ints, Key, count_nonzero
from common.trace.messages import TracedRequest
from common.trace.races import Access, Shadow, picked
from common.trace.state import Log, State, TraceError
from common.trace.values import Value, cast, choose
from common.trace.views import Offsets, View, Wrong, beyond

Array = NDArray[Any]

_TOGETHER = np.bitwise_or.reduce
_WARPS_KEPT = 4  # of one access, so that later rounds of a loop are kept, too


class Storage:
    """Elements of one dtype, and which of them hold a value (None: all do)."""

    space = ""
    unset_look_at = ""  # what one who reads what nothing has written is to look at
    complete = False  # has every element been written
    note: Any  # each kind of memory's own: what it does with a read, and an atomic operation

    def __init__(self, data: Array, written: Bools | None, alignment: int) -> None:
        self.data, self.written, self.alignment = data, written, alignment
        self.dtype: Any = data.dtype

    def flat_offset(self, place: Offsets) -> Any:
        """Where in ``data`` the elements at an offset are."""
        return place

    def _position(self, place: Offsets) -> Any:
        """Bytes from a boundary that the storage's alignment vouches for."""
        return place * self.dtype.itemsize

    @property
    def blank(self) -> Any:
        """What stands where nothing was written."""
        return self.dtype.type(np.nan if self.dtype.kind == "f" else 0)

    def require_aligned(self, state: State, view: View, place: Offsets, width: int, line: int) -> None:
        """A fault unless the accessed elements start at a multiple of their size in bytes."""
        size = width * self.dtype.itemsize
        position = self._position(place)
        together = position if type(position) is int else int(_TOGETHER(position))
        bad = bool(together & (size - 1)) and (position & (size - 1)) != 0
        if bad is not False and count_nonzero(bad & state.mask.bits):
            first = state.first(place - view.start, bad)
            text = f"{8 * size}-bit access to {view.element(first)}, whose address is no multiple of {size} bytes"
            state.fault("misaligned", line, view.name, text, bad)
        elif self.alignment % size:
            text = f"{8 * size}-bit access to {view.name}, whose start is aligned to {self.alignment} bytes only"
            state.fault("misaligned", line, view.name, text)

    def read(
        self, state: State, view: View, place: Offsets, width: int, wrong: Wrong, line: int, op: str = "read"
    ) -> list[Value]:
        """``width`` values from a place on, but for the lanes that are ``wrong``; ``op``: as the ledger costs it."""
        wrong = beyond(state, view, place, width, wrong, line, "read")
        lanes, first, values = state.among(wrong), self.flat_offset(place), []
        self.record(state, view, place, width, op, line, lanes)
        for v in range(width):
            at = first + v if v else first
            if self.written is not None and not self.complete:
                self.missing(state, view, place + v, at, line)
            self.note(state, view, "read", at, lanes, line)
            values.append(self.data.take(at, mode="clip"))
        return values if wrong is None else [choose(wrong, self.blank, value) for value in values]

    def missing(self, state: State, view: View, place: Any, at: Any, line: int, changes: bool = False) -> None:
        """Remember the active lanes that read (or change) what nothing has written, ``at`` in the storage."""
        have = np.True_ if self.written is None else self.written.take(at, mode="clip")
        lanes = state.mask.bits & ~have
        if count_nonzero(lanes):
            nan = self.dtype.kind == "f" and not changes
            views.read_unwritten(state, line, view, place - view.start, lanes, nan)

    def record(self, state: State, view: View, place: Offsets, width: int, op: str, line: int, lanes: Bools) -> None:
        ledger, mask = state.ledger, state.mask
        if not ledger.recording:
            return
        kind, size = COUNTED_AS.get(op, op), width * self.dtype.itemsize
        tally = ledger.tallies[Key(line, self.space, kind, view.name, 8 * size)]
        positions = np.broadcast_to(self._position(place), lanes.shape)
        tally.add(int(count_nonzero(lanes)), ledger.cost(self.space, positions, lanes, size, op))
        if len(tally.seen) < ledger.options.kept:
            asked = positions - self._position(0) // SECTOR_BYTES * SECTOR_BYTES
            rows, bits = asked.reshape(-1, WARP), lanes.reshape(-1, WARP)
            warps = np.flatnonzero(bits.any(axis=1))[: min(_WARPS_KEPT, ledger.options.kept - len(tally.seen))]
            tally.seen += [TracedRequest(warp, _asked(rows[warp], bits[warp])) for warp in warps.tolist()]
        if tally.sample is None:
            places, bits = np.broadcast_to(place - view.start, mask.bits.shape), mask.bits.reshape(-1, WARP)
            warp = int(np.argmax(bits.sum(axis=1)))
            tally.sample = _asked(places.reshape(-1, WARP)[warp], bits[warp])


class Global(Storage):
    """One allocation in global memory. ``address`` is its first byte's."""

    space = "global"
    unset_look_at = "what this line reads: a launch finds in its output, and in what it allocates, nothing of use"

    def __init__(self, data: Array, written: Bools | None, address: int, pitch: int = 0) -> None:
        """``pitch``: bytes from an element to the next."""
        super().__init__(data, written, 256)
        self.address, self.pitch = address, pitch or self.dtype.itemsize
        self._log: Log | None = None  # of the launch
        self._shadow: Shadow | None = None
        self._watched = False  # may the kernel write here
        self.read_only = False  # an input of the step

    def require_writable(self, state: State, view: View, line: int, lane: int | None = None) -> None:
        """A fault if kernels are only to read this, even where they write what was there."""
        self._watched = True
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

    def _shadow_in(self, state: State) -> Shadow:
        if self._log is not state.log:  # no argument is this array: the kernel has it from a tuple or a closure
            self.begin(state.log, True)
        if self._shadow is None:
            self._shadow = Shadow(len(self.data), state.log)
        return self._shadow

    def _position(self, place: Offsets) -> Any:
        return self.address + place * self.pitch

    def note(self, state: State, view: View, op: str, at: Any, lanes: Any, line: int) -> None:
        if op == "read":
            if self._watched or self._log is not state.log:
                self._shadow_in(state).note(Access(op, state, view, at, lanes, line, state.stamps))
            return
        self.require_writable(state, view, line)
        who = lanes.nonzero()[0][:: -1 if state.reversed else 1]
        now = self._shadow_in(state).note(Access(op, state, view, at[who], who, line, state.stamps))
        state.log.meet(now.lanes, now.stamps, now.event)

    def write(self, state: State, view: View, place: Offsets, values: list[Value], wrong: Wrong, line: int) -> None:
        wrong = beyond(state, view, place, len(values), wrong, line, "written")
        lanes = state.among(wrong)
        self.record(state, view, place, len(values), "write", line, lanes)
        self.require_writable(state, view, line)
        for v, value in enumerate(values):
            if state.tainted is not None:
                views.reveal(state, value, f"is stored to {view.name} in line {line}")
            places, chosen = ordered(state, place + v, value, lanes, self.dtype)
            who = lanes.nonzero()[0][:: -1 if state.reversed else 1]
            self.put(state, view, places, who, chosen, line)

    def put(self, state: State, view: View, places: Ints, who: Ints, values: Any, line: int) -> None:
        self._shadow_in(state).note(Access("write", state, view, places, who, line, state.stamps, values), self.data)
        self.data[places] = values
        if self.written is not None:
            self.written[places] = True


class Constant(Storage):
    """An array in constant memory: one word is broadcast, different words are read one after the other."""

    space = "constant"

    def __init__(self, data: Array) -> None:
        super().__init__(data, None, 16)

    def note(self, state: State, view: View, op: str, at: Any, lanes: Bools, line: int) -> None:
        limits.require_constant(sum(array.nbytes for array in state.constants.values()))  # of all that it names

    def write(self, state: State, view: View, place: Offsets, values: list[Value], wrong: Wrong, line: int) -> None:
        raise state.error(line, f"{view.name} lies in constant memory: a kernel cannot write it")


def _asked(places: Ints, lanes: Bools) -> list[int | None]:
    return [place if on else None for place, on in zip(places.tolist(), lanes, strict=True)]


def ordered(state: State, at: Any, value: Any, lanes: Bools, dtype: np.dtype[Any]) -> tuple[Ints, Any]:
    """Where the active lanes write, and what: of two that write one element, the second wins."""
    places = picked(at, lanes)
    chosen = picked(cast(value, dtype), lanes)
    return (places[::-1], chosen[::-1]) if state.reversed else (places, chosen)


def poison(data: Array) -> Array:
    """Memory as nobody should take it to be: NaN, or integers far from zero, each byte 0xA5."""
    kind = data.dtype.kind
    for name in data.dtype.names or ():
        poison(data[name])
    if kind in "iu":
        data[...] = np.frombuffer(b"\xa5" * data.dtype.itemsize, data.dtype)[0]
    elif not data.dtype.names:
        data[...] = kind == "b" or np.nan
    return data


# --- records: each field is an array of its own, and a record is the place of its fields ---


class Record:
    """A record of an array, for each lane the one that it chose; ``line`` is where it did."""

    def __init__(self, state: State, view: View, place: Offsets, wrong: Wrong, line: int) -> None:
        self._state, self._view, self._place, self._wrong, self._line = state, view, place, wrong, line

    def __getattr__(self, name: str) -> Value:
        return self.load(self._state, name, self._line)

    def _field(self, state: State, name: str, line: int) -> tuple[View, bool]:
        """The field of all records; or, of an array field (True), this record's array."""
        whole, said = self._view, f"{self._view.name}.{name}"
        if name not in (whole.dtype.fields or {}):
            raise state.unknown(line, f"{whole.name} has no field {name}")
        kind, (storage, apart) = whole.dtype.fields[name][0], whole.storage.field(name)
        if kind.subdtype:
            strides = View.of(storage, kind.shape).strides
            return View(storage, self._place * apart, kind.shape, strides, said), True
        return View(storage, whole.start, whole.shape, whole.strides, said, whole.bounded), False

    def load(self, state: State, name: Any, line: int) -> Any:
        view, array = self._field(state, name, line)
        return view if array else view.storage.read(state, view, self._place, 1, self._wrong, line)[0]

    def store(self, state: State, name: Any, value: Any, line: int) -> None:
        view, array = self._field(state, name, line)
        if array:
            view.fill(state, value, line)
        else:
            view.storage.write(state, view, self._place, [value], self._wrong, line)


class Single(NamedTuple):
    """A record that is an argument, as an array of it alone."""

    view: View


class Records:
    """Records of an allocation, of a block or of a thread. ``make(name)``: the field's storage, and how many of its
    elements it is from one record's to the next's: that of an array field holds the elements of all records."""

    written = names = None

    def __init__(self, dtype: np.dtype[Any], make: Callable[[str], tuple[Any, int]], data: Any, address: int) -> None:
        self.dtype, self.data, self.address, self._make = dtype, data, address, make
        self.space = "global" if address else "shared or local"
        self._fields: dict[str, tuple[Any, int]] = {}

    def field(self, name: str) -> tuple[Any, int]:
        if name not in self._fields:
            self._fields[name] = self._make(name)
        return self._fields[name]

    def of_all(self, state: State, view: View, name: str, line: int) -> View:
        """An array of one field of all records."""
        found, array = Record(state, view, 0, None, line)._field(state, name, line)
        if array:
            raise state.unknown(line, f"{found.name}: fields of all records that are arrays are not traced")
        return found

    def read(
        self, state: State, view: View, place: Offsets, width: int, wrong: Wrong, line: int, op: Any = ""
    ) -> Any:
        return [Record(state, view, place, wrong, line)]

    def write(self, state: State, view: View, place: Offsets, values: list[Value], wrong: Wrong, line: int) -> None:
        own, other = Record(state, view, place, wrong, line), values[0]
        for name in self.dtype.names or ():
            own.store(state, name, other.load(state, name, line) if isinstance(other, Record) else other[name], line)

    def settle(self, state: State, view: View, present: Bools | None) -> None:
        for name, (storage, _) in self._fields.items():
            own = View(storage, view.start, view.shape, view.strides, f"{view.name}.{name}")
            storage.settle(state, own, present)


def in_global(data: Any, written: Bools | None, address: int, pitch: int = 0) -> Any:
    """An allocation in global memory, or a field of all its records: ``pitch`` bytes from one to the next."""
    if not data.dtype.names:
        return Global(data, written, address, pitch)
    pitch = pitch or data.dtype.itemsize

    def make(name: str) -> tuple[Any, int]:
        kind, offset = data.dtype.fields[name][:2]
        part, start, size = data[name], address + int(offset), kind.base.itemsize
        if not kind.subdtype:
            return in_global(part, None, start, pitch), 1
        if pitch % size or kind.base.names:
            raise TraceError("arrays in records whose size their elements do not divide are not traced")
        count = (len(part) - 1) * pitch // size + math.prod(kind.shape) if len(part) else 0
        flat = np.lib.stride_tricks.as_strided(part if count else part.reshape(-1), (count,), (size,))
        return Global(flat, None, start, size), pitch // size

    return Records(data.dtype, make, data, address)


def of_threads(kind: np.dtype[Any], size: int, new: Callable[[int, Any], Any]) -> Any:
    """``new(size, kind)``, an array of a block or of a thread; of records, one for each field."""

    def make(name: str) -> tuple[Any, int]:
        own = kind.fields[name][0] if kind.fields else kind
        apart = math.prod(own.shape)
        return of_threads(own.base, size * apart, new), apart

    return Records(kind, make, (), 0) if kind.names else new(size, kind)
