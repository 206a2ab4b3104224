"""Arrays of the memories a kernel sees, each access checked and recorded: global, shared, constant, local.

An array is a view: storage, start, shape, strides in elements. Element offsets are one int for all threads, or one
per lane. What nothing has written holds NaN, and a lane that read it is remembered: a NaN that it stores later is
reported as an uninitialised read. A value that is thrown away does no harm and is only noted.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.trace.memory import PAST_L1, SECTOR_BYTES, WARP, WORD_BYTES, Bools, Cost, Ints, Key
from common.trace.shadow import Log, Moment, Shadow
from common.trace.values import INT64, UINT64, Value, cast, choose, signed, uniform, widened

if TYPE_CHECKING:
    from common.trace.lanes import Machine

Array = NDArray[Any]
Offsets = Any  # int, or an int64 per lane

_FILLED = 4096  # elements that one statement may assign
_MANY = 1 << 22  # recorded shared reads, in lanes, that are summed up before the next barrier


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

    @property
    def full(self) -> bool:
        return self.count == len(self.bits)


class View:
    """An array as a kernel sees it."""

    def __init__(
        self, storage: Any, start: Offsets, shape: tuple[int, ...], strides: tuple[int, ...], name: str = "",
        bounded: bool = False,
    ) -> None:  # fmt: skip
        self.storage, self.start, self.shape, self.strides, self.name = storage, start, shape, strides, name
        self.ndim, self.dtype = len(shape), storage.dtype
        self.size = math.prod(shape)
        self.bounded = bounded  # do indices within the shape stay within the storage?
        self.known: dict[Any, int] = {}  # offsets of constant indices into registers

    @staticmethod
    def of(storage: Any, shape: tuple[int, ...]) -> View:
        """All of a storage, in row-major order."""
        return View(storage, 0, shape, _row_major(shape), bounded=True)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def flat_order(self) -> bool:
        """Is a row-major offset an address offset?"""
        wanted = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent != 1 and stride != wanted:
                return False
            wanted *= extent
        return True

    def reshape(self, *given: Any) -> View:
        """The same elements in another shape: whole numbers or a tuple of them, one of which may be -1.

        Raises ValueError if the array is not contiguous or the shape has not as many elements.
        """
        wanted = given[0] if len(given) == 1 and isinstance(given[0], tuple) else given
        extents = [as_offset(extent) for extent in wanted]
        if not self.flat_order:
            raise ValueError(f"{self.name} is not contiguous, so it cannot be reshaped")
        if not all(type(extent) is int for extent in extents):
            raise ValueError(f"{self.name}: a shape that differs between threads is not traced")
        known = math.prod(extent for extent in extents if extent != -1)
        shape = tuple(self.size // max(known, 1) if extent == -1 else extent for extent in extents)
        if extents.count(-1) > 1 or min(shape, default=1) < 0 or math.prod(shape) != self.size:
            raise ValueError(f"{self.name} has {self.size} elements, and is reshaped to {tuple(extents)}")
        return View(self.storage, self.start, shape, _row_major(shape), self.name, self.bounded)

    def element(self, offset: int) -> str:
        """The name of the element at a row-major offset from the view's start, as ``a[2, 3]``."""
        if not 0 <= offset < self.size:
            return f"{self.name}[{offset}]"
        return f"{self.name}[{', '.join(str(int(i)) for i in np.unravel_index(offset, self.shape))}]"

    def load(self, machine: Machine, index: Any, line: int) -> Any:
        place, wrong = self.place(machine, index, line, "read")
        if type(place) is View:
            return place
        if type(place) is int and wrong is None and type(self.storage) is Local:
            self.known[index] = place
        return self.storage.read(machine, self, place, 1, wrong, line)[0]

    def store(self, machine: Machine, index: Any, value: Value, line: int) -> None:
        place, wrong = self.place(machine, index, line, "written")
        if type(place) is int and wrong is None and type(self.storage) is Local:
            self.known[index] = place
        if type(place) is View:
            place.fill(machine, value, line)
            return
        self.storage.write(machine, self, place, [value], wrong, line)

    def place(self, machine: Machine, index: Any, line: int, verb: str) -> tuple[Any, Bools | None]:
        """The element offset of an index, or the view that is left of it; and the lanes whose index is wrong."""
        indices = index if type(index) is tuple else (index,)
        if len(indices) > self.ndim:
            raise machine.error(line, f"{self.name} has {self.ndim} axes, not {len(indices)}")
        place, wrong = self.start, None
        shape, strides = [], []  # of what slices leave
        for axis, (i, extent, stride) in enumerate(zip(indices, self.shape, self.strides, strict=False)):
            if type(i) is slice:
                i, length, step = self._range(machine, i, extent, line)
                shape.append(length)
                strides.append(stride * step)
            else:
                i, bad = machine.within(i, extent, line, self, axis, verb)
                if bad is not None:
                    wrong = bad if wrong is None else wrong | bad
            place = place + (i if stride == 1 else i * stride)
        left = len(indices)
        if shape or left < self.ndim:
            shape, strides = [*shape, *self.shape[left:]], [*strides, *self.strides[left:]]
            return View(self.storage, place, tuple(shape), tuple(strides), self.name), wrong
        return place, wrong

    def fill(self, machine: Machine, value: Any, line: int) -> None:
        """Assign to every element a number, or the elements of an array of the same shape."""
        if self.size > _FILLED:
            raise machine.unknown(
                line, f"{self.name}: {self.size} elements are assigned at once, which is not traced"
            )
        for at in np.ndindex(*self.shape):
            if type(value) is View:
                if value.shape != self.shape[self.ndim - value.ndim :]:
                    raise machine.error(line, f"{self.name} with {self.shape} elements is assigned {value.shape}")
                self.store(machine, at, value.load(machine, at[self.ndim - value.ndim :], line), line)
            else:
                self.store(machine, at, value, line)

    def _range(self, machine: Machine, part: slice, extent: int, line: int) -> tuple[Offsets, int, int]:
        """The first element of a slice, how many it has, and its step. Ends beyond the array are cut, as in NumPy."""
        ends = [None if end is None else as_offset(end) for end in (part.start, part.stop, part.step)]
        if all(end is None or type(end) is int for end in ends):
            chosen = range(*slice(*ends).indices(extent))
            return chosen.start, len(chosen), chosen.step
        low = 0 if ends[0] is None else ends[0]
        high = extent if ends[1] is None else ends[1]
        first, last = np.broadcast_arrays(np.clip(np.where(low < 0, low + extent, low), 0, extent),
                                          np.clip(np.where(high < 0, high + extent, high), 0, extent))  # fmt: skip
        lengths = np.unique((last - first)[machine.mask.bits])
        if ends[2] not in (None, 1) or len(lengths) > 1:
            raise machine.unknown(line, f"{self.name}: a slice whose length differs between threads is not traced")
        whole = np.broadcast_to(first, machine.mask.bits.shape)
        return whole, max(int(lengths[0]), 0) if len(lengths) else 0, 1

    def place_flat(
        self, machine: Machine, offset: Value, width: int, line: int, verb: str, aligned: bool = True
    ) -> tuple[Offsets, Bools | None]:
        """The element offset of ``width`` elements from a row-major offset on, which must suit the width."""
        if not self.flat_order:
            raise machine.error(line, f"{self.name} is not contiguous: a flat offset does not address it")
        offset, wrong = machine.within(offset, self.size - width + 1, line, self, None, verb)
        place = self.start + offset
        if width > 1 and aligned:
            self.storage.require_aligned(machine, self, place, width, line)
        return place, wrong


class Storage:
    """Elements of one dtype, and which of them hold a value (None: all do)."""

    space = ""

    def __init__(self, data: Array, written: Bools | None, alignment: int) -> None:
        self.data, self.written, self.alignment = data, written, alignment
        self.dtype = data.dtype

    def require_aligned(self, machine: Machine, view: View, place: Offsets, width: int, line: int) -> None:
        """A fault unless the accessed elements start at a multiple of their size in bytes."""
        size = width * self.dtype.itemsize
        bad = (self._position(place) % size) != 0
        lanes = _lanes(bad, machine.mask)
        if self.alignment % size and not lanes:
            text = f"{8 * size}-bit access to {view.name}, whose start is aligned to {self.alignment} bytes only"
            machine.fault("misaligned", line, view.name, text)
        elif lanes:
            first = machine.first(place - view.start, bad)
            text = f"{8 * size}-bit access to {view.element(first)}, whose address is no multiple of {size} bytes"
            machine.fault("misaligned", line, view.name, text, bad)

    def _position(self, place: Offsets) -> Any:
        """Bytes from a boundary that the storage's alignment vouches for."""
        return place * self.dtype.itemsize

    @property
    def blank(self) -> Any:
        """What stands where nothing was written, as far as a value can tell."""
        return np.nan if self.dtype.kind == "f" else 0

    def _missing(self, machine: Machine, view: View, place: Any, at: Any, line: int, changes: bool = False) -> None:
        """Remember the active lanes that read (or change) what nothing has written, ``at`` in the storage."""
        if self.written is None:
            return
        have = self.written.take(at, mode="clip")
        if np.count_nonzero(have) < np.size(have):
            lanes = machine.mask.bits & ~have
            if np.count_nonzero(lanes):
                nan = self.dtype.kind == "f" and not changes
                machine.read_uninitialised(line, view, place - view.start, lanes, nan)


class Global(Storage):
    """One allocation in global memory. ``address`` is its first byte's."""

    space = "global"

    def __init__(self, data: Array, written: Bools | None, address: int) -> None:
        super().__init__(data, written, 256)
        self.address = address
        self._log: Log | None = None  # of the launch
        self._shadow: Shadow | None = None
        self._watched = False  # may the kernel write here
        self.read_only = False  # an input of the step

    def require_writable(self, machine: Machine, view: View, line: int, lane: int | None = None) -> None:
        """A fault if kernels are only to read this, even where what they write is what was there, or comes back."""
        if self.read_only:
            text = f"{view.name} is an input of the step, which kernels only read"
            machine.fault("input-written", line, view.name, text, lane=lane)

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

    def shadow(self, machine: Machine) -> Shadow:
        if self._log is not machine.log:  # no argument is this array: the kernel has it from a tuple or a closure
            self.begin(machine.log, True)
        if self._shadow is None:
            assert self._log is not None
            self._shadow = Shadow(len(self.data), self._log)
        return self._shadow

    def _position(self, place: Offsets) -> Any:
        return self.address + place * self.dtype.itemsize

    def read(
        self, machine: Machine, view: View, place: Offsets, width: int, wrong: Bools | None, line: int,
        op: str = "read",
    ) -> list[Value]:  # fmt: skip
        wrong = machine.beyond(view, place, width, wrong, line, "read")
        self.record(machine, view, place, width, op, line, wrong)
        places = [place + v for v in range(width)] if width > 1 else [place]
        if self._watched:
            lanes = machine.mask.bits if wrong is None else machine.mask.bits & ~wrong
            for at in places:
                self.shadow(machine).read(machine, view, _chosen(at, lanes), lanes, line)
        if self.written is not None:
            for at in places:
                self._missing(machine, view, at, at, line)
        values = [self.data.take(at, mode="clip") for at in places]
        return values if wrong is None else [choose(wrong, self.dtype.type(self.blank), value) for value in values]

    def write(
        self, machine: Machine, view: View, place: Offsets, values: list[Value], wrong: Bools | None, line: int
    ) -> None:
        wrong = machine.beyond(view, place, len(values), wrong, line, "written")
        self.record(machine, view, place, len(values), "write", line, wrong)
        lanes = machine.mask.bits if wrong is None else machine.mask.bits & ~wrong
        self._watched = True
        self.require_writable(machine, view, line)
        for v, value in enumerate(values):
            machine.reveal(value, line, view)
            places, chosen = _ordered(machine, place + v, value, lanes, self.dtype)
            self._put(machine, view, places, lanes, chosen, line)

    def note_box(self, machine: Machine, view: View, places: Ints, lane: int, line: int) -> None:
        """A copy that a thread has begun reads these elements."""
        if self._watched:
            self.shadow(machine).read(machine, view, places, np.full(len(places), lane), line)

    def write_box(self, machine: Machine, view: View, places: Ints, values: Array, lane: int, line: int) -> None:
        """A copy that a thread has begun writes these elements."""
        self.require_writable(machine, view, line, lane)
        self._watched = True
        self._put(machine, view, places, np.full(len(places), lane), values, line)

    def _put(self, machine: Machine, view: View, places: Ints, lanes: Any, values: Any, line: int) -> None:
        self.shadow(machine).write(machine, view, places, lanes, values, self.data, line)
        self.data[places] = values
        if self.written is not None:
            self.written[places] = True

    def begin_atomic(
        self, machine: Machine, view: View, place: Offsets, lanes: Bools, wrong: Bools | None, line: int, fresh: bool
    ) -> Ints:
        """Note an atomic operation; returns the elements by lane."""
        self.record(machine, view, place, 1, "atomic", line, wrong)
        self._watched = True
        self.require_writable(machine, view, line)
        at = np.broadcast_to(np.asarray(place), lanes.shape)
        if not fresh:
            self._missing(machine, view, place, at, line, changes=True)
        self.shadow(machine).atomic(machine, view, at[lanes], lanes, line)
        return at

    def record(
        self, machine: Machine, view: View, place: Offsets, width: int, op: str, line: int, wrong: Bools | None
    ) -> None:
        ledger, mask = machine.ledger, machine.mask
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
            cost = ledger.cost("global", self.address + place * size, lanes, size * width, op)
            accesses = int(np.count_nonzero(lanes))
        tally.add(accesses, cost)
        if len(tally.seen) < ledger.kept:
            asked = self.address % SECTOR_BYTES + np.broadcast_to(place, mask.bits.shape) * size
            machine.keep(tally, asked, mask.bits if wrong is None else mask.bits & ~wrong)
        machine.observe(tally, view, place - view.start, width, kind, line)


class Constant(Storage):
    """An array in constant memory: one word is broadcast, different words are read one after the other."""

    space = "constant"

    def __init__(self, data: Array) -> None:
        super().__init__(data, None, 16)

    def read(
        self, machine: Machine, view: View, place: Offsets, width: int, wrong: Bools | None, line: int
    ) -> list[Value]:
        machine.require_constants()
        ledger, mask = machine.ledger, machine.mask
        if ledger.recording:
            key = Key(line, self.space, "read", view.name, 8 * self.dtype.itemsize)
            turns = mask.warps
            if type(place) is not int:
                rows = np.where(mask.bits, place, -1).reshape(-1, WARP)
                turns = sum(len(set(row.tolist()) - {-1}) for row in rows)
            tally = ledger.tallies[key]
            tally.add(mask.count, Cost(mask.warps, turns, mask.warps, turns))
            if len(tally.seen) < ledger.kept:
                machine.keep(tally, np.broadcast_to(place, mask.bits.shape) * self.dtype.itemsize, mask.bits)
        value = self.data.take(place, mode="clip")
        return [value if wrong is None else choose(wrong, self.dtype.type(0), value)]

    def write(
        self, machine: Machine, view: View, place: Offsets, values: list[Value], wrong: Bools | None, line: int
    ) -> None:
        raise machine.error(line, f"{view.name} lies in constant memory: a kernel cannot write it")


class _Access(NamedTuple):
    """One access to shared memory by an instruction; ``op``: read, write or atomic."""

    op: str
    at: Any
    lanes: Bools
    line: int
    stamps: Any
    value: Any = None


class _Interval(Shadow):
    """The accesses to a block's array between two barriers."""

    def _tell(
        self, machine: Machine, view: View, kind: str, place: int, pair: tuple[int, int], lines: tuple[int, int],
        verbs: tuple[str, str], count: int,
    ) -> None:  # fmt: skip
        text = self.racing(machine, view.element(place % view.storage.size), pair, lines, verbs)
        machine.fault(kind, lines[0], view.name, text, lane=pair[0], count=count)


class Shared(Storage):
    """An array in shared memory, one per block, and who accessed what since the last barrier."""

    space = "shared"

    def __init__(self, machine: Machine, size: int, dtype: Any, alignment: int) -> None:
        blocks = machine.blocks_at_once
        super().__init__(poisoned(blocks * size, np.dtype(dtype)), np.zeros(blocks * size, np.bool_), alignment)
        self.size = size
        self.base = machine.block_number * size if blocks > 1 else None
        self.complete = False  # has every element been written
        self.accesses: list[_Access] = []  # in the order in which they came
        self.pending: Bools | None = None  # elements that a copy is under way to
        self._read_lanes = 0

    def _flat(self, place: Offsets) -> Any:
        return place if self.base is None else self.base + place

    def read(
        self, machine: Machine, view: View, place: Offsets, width: int, wrong: Bools | None, line: int,
        paired: bool = True,
    ) -> list[Value]:  # fmt: skip
        """``paired``: may neighbours that read the same share a pass?"""
        self.record(machine, view, place, width, "read", line, paired)
        lanes = machine.mask.bits if wrong is None else machine.mask.bits & ~wrong
        values = []
        for v in range(width):
            at = self._flat(place + v)
            if self.pending is not None and np.count_nonzero(early := lanes & self.pending.take(at, mode="clip")):
                text = f"{view.name} is read while a copy to the same element is under way: wait for it first"
                machine.fault("copy-not-awaited", line, view.name, text, early)
            if not self.complete:
                self._missing(machine, view, place + v, at, line)
            self.noted_read(machine, view, at, lanes, line)
            values.append(self.data.take(at, mode="clip"))
        self._read_lanes += width * len(machine.mask.bits)
        if self._read_lanes > _MANY:
            self._sum_up(machine)
        return values if wrong is None else [choose(wrong, self.dtype.type(0), value) for value in values]

    def write(
        self, machine: Machine, view: View, place: Offsets, values: list[Value], wrong: Bools | None, line: int
    ) -> None:
        self.record(machine, view, place, len(values), "write", line)
        lanes = machine.mask.bits if wrong is None else machine.mask.bits & ~wrong
        for v, value in enumerate(values):
            at = self._flat(place + v)
            before = value
            value = cast(value, self.dtype)
            self.noted_write(machine, view, at, lanes, value, line)
            places, chosen = _ordered(machine, at, value, lanes, self.dtype)
            self.data[places] = chosen
            assert self.written is not None
            if machine.tainted is None:
                if not self.complete:
                    self.written[places] = True
            else:
                unset = np.isnan(np.broadcast_to(np.asarray(before, np.float64), lanes.shape)[lanes])
                have = ~(machine.tainted[lanes] & unset)
                self.written[places] = have if not machine.reversed else have[::-1]
                self.complete = self.complete and bool(self.written.all())

    def noted_read(self, machine: Machine, view: View, at: Any, lanes: Bools, line: int) -> None:
        self.accesses.append(_Access("read", at, lanes, line, machine.stamps))

    def noted_write(self, machine: Machine, view: View, at: Any, lanes: Bools, value: Any, line: int) -> None:
        self.accesses.append(_Access("write", at, lanes, line, machine.stamps, value))

    def still_under_way(self, at: Any, lanes: Bools, value: Any, line: int, stamps: Any) -> None:
        """A copy that nobody has waited for may arrive after this barrier as well."""
        self.accesses.append(_Access("write", at, lanes, line, stamps, value))

    def record(
        self, machine: Machine, view: View, place: Offsets, width: int, op: str, line: int, paired: bool = True
    ) -> None:
        ledger, mask = machine.ledger, machine.mask
        if not ledger.recording:
            return
        if op == "read" and width == 1 and view.name in ledger.merged:
            width = ledger.merged[view.name]
            if np.any(place % width):
                return  # comes with the neighbour before it
        words = width * self.dtype.itemsize // WORD_BYTES or 1
        tally = ledger.tallies[Key(line, self.space, op, view.name, 8 * self.dtype.itemsize * width)]
        if type(place) is int and words == 1:
            cost = Cost(mask.warps, mask.warps, mask.warps, mask.warps)
        else:
            lanes = np.broadcast_to(place * self.dtype.itemsize // WORD_BYTES, mask.bits.shape)
            cost = ledger.cost("shared", lanes, mask.bits, words, op if paired else "write")
        tally.add(mask.count, cost)
        if len(tally.seen) < ledger.kept:
            machine.keep(tally, np.broadcast_to(place, mask.bits.shape) * self.dtype.itemsize, mask.bits)
        machine.observe(tally, view, place - view.start, width, op, line)

    def begin_atomic(
        self, machine: Machine, view: View, place: Offsets, lanes: Bools, wrong: Bools | None, line: int, fresh: bool
    ) -> Ints:
        """Note an atomic operation; returns the elements by lane."""
        self.record(machine, view, place, 1, "atomic", line)
        at: Ints = np.broadcast_to(np.asarray(self._flat(place)), lanes.shape)
        if not fresh and not self.complete:
            self._missing(machine, view, place, at, line, changes=True)
        self.accesses.append(_Access("atomic", at, lanes, line, machine.stamps))
        return at

    def settle(self, machine: Machine, view: View, present: Bools | None) -> None:
        """At a barrier of the blocks with the lanes ``present`` (None: of all): find accesses since the last one that
        no order of the warps makes safe."""
        later: list[_Access] = []
        if present is not None:  # what other blocks did waits for their barrier
            whole, self.accesses = self.accesses, []
            for one in whole:
                if (left := one.lanes & ~present).any():
                    later.append(one._replace(lanes=left))
                self.accesses.append(one._replace(lanes=one.lanes & present))
        ops = {one.op for one in self.accesses}
        if "write" in ops or ops >= {"atomic", "read"}:
            self._find_races(machine, view)
        self.accesses = later
        self._read_lanes = 0
        self.complete = self.complete or bool(self.written is not None and self.written.all())

    def _sum_up(self, machine: Machine) -> None:
        """Keep, of the reads so far, one per element and lane pattern: loops without a barrier read for long."""
        kept: dict[Any, _Access] = {}
        for number, one in enumerate(self.accesses):
            alike = np.asarray(one.at).tobytes(), one.lanes.tobytes(), np.asarray(one.stamps).tobytes()
            kept.setdefault(alike if one.op == "read" else number, one)
        self.accesses = list(kept.values())
        self._read_lanes = 0

    def _find_races(self, machine: Machine, view: View) -> None:
        changed = np.zeros(len(self.data), np.bool_)
        for one in self.accesses:
            if one.op != "read":
                changed[_chosen(one.at, one.lanes)] = True
        content = np.zeros(len(self.data), self.dtype)
        everyone, log = machine.lane_numbers, Log(machine.lanes_per_block)
        shadow = _Interval(len(self.data), log)
        for one in self.accesses:
            # most read what was staged before
            if one.op == "read" and not np.count_nonzero(changed.take(one.at, mode="clip")):
                continue
            places, who = _chosen(one.at, one.lanes), everyone[one.lanes]
            if one.op == "read":
                met = changed[places]
                places, who = places[met], who[met]
            stamps = partial(_of, one.stamps)
            now = Moment(who, stamps(who), stamps, log.add(one.line, one.stamps, 0), one.line)
            if one.op == "read":
                shadow.note_read(machine, view, places, now)
            elif one.op == "atomic":
                shadow.note_atomic(machine, view, places, now)
            else:
                values = np.broadcast_to(np.asarray(one.value, self.dtype), one.lanes.shape)[one.lanes]
                shadow.note_write(machine, view, places, values, content, now)
                content[places] = values


class Local(Storage):
    """A thread's own array: registers, as long as every index is known when compiling."""

    space = "local"

    def __init__(self, machine: Machine, size: int, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)
        self.values: list[Any] = [None] * size
        self.lacking: dict[int, Bools] = {}  # lanes that have not written an element that others have
        self.whole = machine.mask  # lanes that the array exists for
        self.flight: list[Any] = []  # sums that wgmma adds to, and that the threads may not touch
        self.fenced: list[Any] | None = None  # what the registers held at the last wgmma_fence
        self.alignment = 16

    def require_aligned(self, machine: Machine, view: View, place: Offsets, width: int, line: int) -> None:
        pass  # registers have no address

    def read(
        self, machine: Machine, view: View, place: Offsets, width: int, wrong: Bools | None, line: int
    ) -> list[Value]:
        self._record(machine, view, place, width, "read", line)
        if type(place) is int and not self.lacking:
            found = self.values[place : place + width]
            if None not in [None if value is None else 0 for value in found]:
                return found
        return [self.value_at(machine, view, place + v, line) for v in range(width)]

    def value_at(self, machine: Machine, view: View, place: Offsets, line: int) -> Value:
        if type(place) is int:
            value, lanes = self.values[place], self.lacking.get(place)
            missing = machine.mask.bits if value is None else None if lanes is None else lanes & machine.mask.bits
            if (
                missing is not None
                and missing.any()
                and not machine.multiplied_into(self, view, place, missing, line)
            ):
                machine.read_uninitialised(line, view, place - view.start, missing, self.dtype.kind == "f")
            return self._blank() if value is None else value
        at = place.clip(0, len(self.values) - 1)
        rows = [np.broadcast_to(self._blank() if v is None else v, place.shape) for v in self.values]
        if self.lacking or any(value is None for value in self.values):
            nobody = np.ones(place.shape, np.bool_)
            none = np.zeros(place.shape, np.bool_)
            gaps = [nobody if v is None else self.lacking.get(i, none) for i, v in enumerate(self.values)]
            missing = np.stack(gaps)[at, np.arange(len(place))] & machine.mask.bits
            if missing.any():
                machine.read_uninitialised(line, view, place - view.start, missing, self.dtype.kind == "f")
        return np.stack(rows)[at, np.arange(len(place))]

    def write(
        self, machine: Machine, view: View, place: Offsets, values: list[Value], wrong: Bools | None, line: int
    ) -> None:
        self._record(machine, view, place, len(values), "write", line)
        for v, value in enumerate(values):
            if machine.tainted is not None and self.dtype.kind in "iu":
                machine.defined(value, line)
            if type(place) is int:
                self.put(machine, place + v, value, machine.mask)
            else:
                for i in range(len(self.values)):
                    lanes = machine.mask.bits & (place + v == i)
                    if lanes.any():
                        self.put(machine, i, value, Mask(lanes))

    def put(self, machine: Machine, i: int, value: Value, mask: Mask) -> None:
        value = self._cast(value)
        if mask is self.whole or mask.count == self.whole.count:
            self.values[i] = value
            self.lacking.pop(i, None)
            return
        old = self.values[i]
        lacking = self.whole.bits if old is None else self.lacking.get(i)
        if lacking is not None:
            self.lacking[i] = lacking & ~mask.bits
            if not self.lacking[i].any():
                del self.lacking[i]
        self.values[i] = np.where(mask.bits, value, self._blank() if old is None else old)

    def _blank(self) -> Value:
        return self.dtype.type(self.blank)

    def _cast(self, value: Value) -> Value:
        if type(value) is int or type(value) is bool:
            return cast(value, self.dtype)
        return value if value.dtype is self.dtype else cast(value, self.dtype)

    def _record(self, machine: Machine, view: View, place: Offsets, width: int, op: str, line: int) -> None:
        if machine.ledger.recording:
            bits = 8 * self.dtype.itemsize * width
            tally = machine.ledger.tallies[Key(line, self.space, op, view.name, bits)]
            tally.add(machine.mask.count, Cost(machine.mask.warps, 0, 0, 0))
            if type(place) is not int:
                text = f"{view.name} is indexed by a value that differs between threads: it cannot stay in registers"
                machine.ledger.notes[text] += 1


POISON = 0xA5  # every byte of an integer that nothing has written


def poisoned(size: int, dtype: np.dtype[Any]) -> Array:
    """Memory as nobody should take it to be: NaN, or numbers far from zero."""
    data = np.empty(size, dtype)
    poison(data)
    return data


def poison(data: Array) -> None:
    data[...] = np.frombuffer(bytes([POISON]) * data.dtype.itemsize, data.dtype)[0] if data.dtype.kind in "iu" else (
        True if data.dtype.kind == "b" else np.nan
    )  # fmt: skip


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _lanes(condition: Any, mask: Mask) -> int:
    """Active lanes for which it holds."""
    if uniform(condition):
        return mask.count if condition else 0
    return int(np.count_nonzero(condition & mask.bits))


def _chosen(at: Any, lanes: Bools) -> Any:
    if isinstance(at, np.ndarray) and at.shape == lanes.shape:
        return at[lanes]
    return np.full(np.count_nonzero(lanes), at)


def _of(stamps: Any, lanes: Bools | Ints) -> Any:
    return stamps[lanes] if isinstance(stamps, np.ndarray) else stamps


def _ordered(machine: Machine, at: Any, value: Any, lanes: Bools, dtype: np.dtype[Any]) -> tuple[Ints, Any]:
    """Where the active lanes write, and what: of two that write one element, the second wins."""
    places = _chosen(at, lanes)
    chosen = _chosen(cast(value, dtype), lanes)
    return (places[::-1], chosen[::-1]) if machine.reversed else (places, chosen)


def as_offset(value: Value) -> Offsets:
    """An index as a Python int or an int64 per lane."""
    if type(value) is int:
        return value
    if uniform(value):
        return int(value)
    if value.dtype == INT64:
        return value
    if value.dtype.kind not in "iub":
        raise TypeError(f"an index must be an integer, and this is {value.dtype}")
    return value.view(INT64) if value.dtype == UINT64 else signed(widened(value))
