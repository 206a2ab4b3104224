"""Arrays of the memories a kernel sees, each access checked and recorded: global, shared, constant, local.

An array is a view: storage, start, shape, strides in elements. Element offsets are one int for all threads, or one
per lane. What nothing has written holds NaN, and a lane that read it is remembered: a NaN that it stores later is
reported as an uninitialised read. A value that is thrown away does no harm and is only noted.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from common.tracing.memory import WARP, WORD_BYTES, Bools, Cost, Ints, Key
from common.tracing.values import INT64, UINT64, Value, choose, signed, uniform, widened

if TYPE_CHECKING:
    from common.tracing.lanes import Machine

Array = NDArray[Any]
Offsets = Any  # int, or an int64 per lane

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
        self, storage: Any, start: Offsets, shape: tuple[int, ...], strides: tuple[int, ...], name: str = ""
    ) -> None:
        self.storage, self.start, self.shape, self.strides, self.name = storage, start, shape, strides, name
        self.ndim, self.dtype = len(shape), storage.dtype
        self.size = math.prod(shape)

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

    def element(self, offset: int) -> str:
        """The name of the element at a row-major offset from the view's start, as ``a[2, 3]``."""
        if not 0 <= offset < self.size:
            return f"{self.name}[{offset}]"
        return f"{self.name}[{', '.join(str(int(i)) for i in np.unravel_index(offset, self.shape))}]"

    def load(self, machine: Machine, index: Any, line: int) -> Any:
        if type(index) is slice:
            raise machine.error(line, f"{self.name}: slices of arrays are not traced")
        place, wrong = self.place(machine, index, line, "read")
        if type(place) is View:
            return place
        return self.storage.read(machine, self, place, 1, wrong, line)[0]

    def store(self, machine: Machine, index: Any, value: Value, line: int) -> None:
        place, wrong = self.place(machine, index, line, "written")
        if type(place) is View:
            raise machine.error(line, f"{self.name} has {self.ndim} axes: a store needs an index for each")
        self.storage.write(machine, self, place, [value], wrong, line)

    def place(self, machine: Machine, index: Any, line: int, verb: str) -> tuple[Any, Bools | None]:
        """The element offset of an index, or the view that is left of it; and the lanes whose index is wrong."""
        indices = index if type(index) is tuple else (index,)
        if len(indices) > self.ndim:
            raise machine.error(line, f"{self.name} has {self.ndim} axes, not {len(indices)}")
        place, wrong = self.start, None
        for axis, (i, extent, stride) in enumerate(zip(indices, self.shape, self.strides, strict=False)):
            i, bad = machine.within(i, extent, line, self, axis, verb)
            if bad is not None:
                wrong = bad if wrong is None else wrong | bad
            place = place + (i if stride == 1 else i * stride)
        left = len(indices)
        if left < self.ndim:
            return View(self.storage, place, self.shape[left:], self.strides[left:], self.name), wrong
        return place, wrong

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

    def _missing(self, machine: Machine, view: View, place: Any, at: Any, line: int) -> None:
        """Remember the active lanes that read what nothing has written, ``at`` in the storage."""
        if self.written is None:
            return
        have = self.written.take(at, mode="clip")
        if not np.all(have):
            lanes = machine.mask.bits & ~have
            if lanes.any():
                machine.read_uninitialised(line, view, place - view.start, lanes, self.dtype.kind == "f")


class Global(Storage):
    """One allocation in global memory. ``address`` is its first byte's."""

    space = "global"

    def __init__(self, data: Array, written: Bools | None, address: int) -> None:
        super().__init__(data, written, 256)
        self.address = address

    def _position(self, place: Offsets) -> Any:
        return self.address + place * self.dtype.itemsize

    def read(
        self, machine: Machine, view: View, place: Offsets, width: int, wrong: Bools | None, line: int,
        op: str = "read",
    ) -> list[Value]:  # fmt: skip
        wrong = machine.beyond(view, place, width, wrong, line, "read")
        self.record(machine, view, place, width, op, line, wrong)
        places = [place + v for v in range(width)] if width > 1 else [place]
        for at in places:
            self._missing(machine, view, at, at, line)
        values = [self.data.take(at, mode="clip") for at in places]
        return values if wrong is None else [choose(wrong, self.dtype.type(np.nan), value) for value in values]

    def write(
        self, machine: Machine, view: View, place: Offsets, values: list[Value], wrong: Bools | None, line: int
    ) -> None:
        wrong = machine.beyond(view, place, len(values), wrong, line, "written")
        self.record(machine, view, place, len(values), "write", line, wrong)
        lanes = machine.mask.bits if wrong is None else machine.mask.bits & ~wrong
        for v, value in enumerate(values):
            machine.reveal(value, line, view)
            _scatter(self.data, place + v, value, lanes)
            if self.written is not None:
                _scatter(self.written, place + v, True, lanes)

    def record(
        self, machine: Machine, view: View, place: Offsets, width: int, op: str, line: int, wrong: Bools | None
    ) -> None:
        ledger, mask = machine.ledger, machine.mask
        if not ledger.recording:
            return
        size = self.dtype.itemsize
        tally = ledger.tally(Key(line, self.space, op, view.name, 8 * size * width))
        if type(place) is int and wrong is None:
            cost = Cost(mask.warps, mask.warps, mask.warps, mask.warps)
            accesses = mask.count
        else:
            lanes = mask.bits if wrong is None else mask.bits & ~wrong
            place = np.broadcast_to(place, lanes.shape)
            cost = ledger.cost("global", self.address + place * size, lanes, size * width)
            accesses = int(np.count_nonzero(lanes))
        tally.add(accesses, cost)
        machine.observe(tally, view, place - view.start, width, op, line)


class Constant(Storage):
    """An array in constant memory: one word is broadcast, different words are read one after the other."""

    space = "constant"

    def __init__(self, data: Array) -> None:
        super().__init__(data, None, 16)

    def read(
        self, machine: Machine, view: View, place: Offsets, width: int, wrong: Bools | None, line: int
    ) -> list[Value]:
        ledger, mask = machine.ledger, machine.mask
        if ledger.recording:
            key = Key(line, self.space, "read", view.name, 8 * self.dtype.itemsize)
            turns = mask.warps
            if type(place) is not int:
                rows = np.where(mask.bits, place, -1).reshape(-1, WARP)
                turns = sum(len(set(row.tolist()) - {-1}) for row in rows)
            ledger.tally(key).add(mask.count, Cost(mask.warps, turns, mask.warps, turns))
        value = self.data.take(place, mode="clip")
        return [value if wrong is None else choose(wrong, self.dtype.type(0), value)]

    def write(
        self, machine: Machine, view: View, place: Offsets, values: list[Value], wrong: Bools | None, line: int
    ) -> None:
        raise machine.error(line, f"{view.name} lies in constant memory: a kernel cannot write it")


class Shared(Storage):
    """An array in shared memory, one per block, and who accessed what since the last barrier."""

    space = "shared"

    def __init__(self, machine: Machine, size: int, dtype: Any, alignment: int) -> None:
        blocks = machine.blocks_at_once
        blank = np.zeros if np.dtype(dtype).kind != "f" else _nans
        super().__init__(blank(blocks * size, dtype), np.zeros(blocks * size, np.bool_), alignment)
        self.size = size
        self.base = machine.block_number * size if blocks > 1 else None
        self.complete = False  # has every element been written
        self.writes: list[tuple[Any, Bools, Any, int, int]] = []  # places, lanes, value, line, warp epoch
        self.reads: list[tuple[Any, Bools, int, int]] = []
        self.pending: Bools | None = None  # elements that a copy is under way to
        self._read_lanes = 0

    def _flat(self, place: Offsets) -> Any:
        return place if self.base is None else self.base + place

    def read(
        self, machine: Machine, view: View, place: Offsets, width: int, wrong: Bools | None, line: int
    ) -> list[Value]:
        self.record(machine, view, place, width, "read", line)
        values = []
        for v in range(width):
            at = self._flat(place + v)
            if self.pending is not None and (under_way := _lanes(self.pending.take(at, mode="clip"), machine.mask)):
                text = f"{view.name} is read while a copy to the same element is under way: wait for it first"
                machine.fault("copy_not_awaited", line, view.name, text, count=under_way)
            if not self.complete:
                self._missing(machine, view, place + v, at, line)
            self.reads.append((at, machine.mask.bits, line, machine.warp_epoch))
            values.append(self.data.take(at, mode="clip"))
        self._read_lanes += width * len(machine.mask.bits)
        if self._read_lanes > _MANY:
            self._sum_up(machine)
        return values if wrong is None else [choose(wrong, self.dtype.type(0), value) for value in values]

    def write(
        self, machine: Machine, view: View, place: Offsets, values: list[Value], wrong: Bools | None, line: int,
        record: bool = True,
    ) -> None:  # fmt: skip
        if record:
            self.record(machine, view, place, len(values), "write", line)
        lanes = machine.mask.bits if wrong is None else machine.mask.bits & ~wrong
        for v, value in enumerate(values):
            at = self._flat(place + v)
            self.writes.append((at, lanes, value, line, machine.warp_epoch))
            _scatter(self.data, at, value, lanes)
            assert self.written is not None
            have = True if machine.tainted is None else ~(machine.tainted & np.isnan(np.asarray(value, np.float64)))
            _scatter(self.written, at, have, lanes)
            if self.complete and have is not True:
                self.complete = bool(self.written.all())

    def record(self, machine: Machine, view: View, place: Offsets, width: int, op: str, line: int) -> None:
        ledger, mask = machine.ledger, machine.mask
        if not ledger.recording:
            return
        if op == "read" and width == 1 and view.name in ledger.merged:
            width = ledger.merged[view.name]
            if np.any(place % width):
                return  # comes with the neighbour before it
        words = width * self.dtype.itemsize // WORD_BYTES or 1
        tally = ledger.tally(Key(line, self.space, op, view.name, 8 * self.dtype.itemsize * width))
        if type(place) is int and words == 1:
            cost = Cost(mask.warps, mask.warps, mask.warps, mask.warps)
        else:
            lanes = np.broadcast_to(place * self.dtype.itemsize // WORD_BYTES, mask.bits.shape)
            cost = ledger.cost("shared", lanes, mask.bits, words, op in ("write", "copy"))
        tally.add(mask.count, cost)
        machine.observe(tally, view, place - view.start, width, op, line)

    def settle(self, machine: Machine, view: View) -> None:
        """At a barrier: find accesses since the last one that no order of the warps makes safe."""
        if self.writes:
            self._find_races(machine, view)
        self.writes, self.reads, self._read_lanes = [], [], 0
        self.complete = self.complete or bool(np.all(self.written))

    def _sum_up(self, machine: Machine) -> None:
        """Keep, of the reads so far, one per element and lane pattern: loops without a barrier read for long."""
        kept: dict[tuple[bytes, bytes, int], tuple[Any, Bools, int, int]] = {}
        for read in self.reads:
            at, lanes, _, epoch = read
            kept.setdefault((np.asarray(at).tobytes(), lanes.tobytes(), epoch), read)
        self.reads = list(kept.values())
        self._read_lanes = 0

    def _find_races(self, machine: Machine, view: View) -> None:
        owner = np.full(len(self.data), -1, np.int64)  # the lane that wrote an element last
        epoch, lines = np.zeros(len(self.data), np.int64), np.zeros(len(self.data), np.int64)
        content = np.zeros(len(self.data), self.dtype)
        everyone = machine.lane_numbers
        for at, lanes, value, line, now in self.writes:
            places, who = _chosen(at, lanes), everyone[lanes]
            values = np.broadcast_to(np.asarray(value, self.dtype), lanes.shape)[lanes]
            # two threads may write the same value: whichever comes last, the result is the same
            earlier = owner[places]
            met = (earlier >= 0) & ~_same(content[places], values) & self._unordered(earlier, who, epoch[places], now)
            self._report(machine, view, met, who, earlier, line, lines[places], "written by", places)
            owner[places], epoch[places], lines[places], content[places] = who, now, line, values
            beaten = (owner[places] != who) & ~_same(content[places], values)
            self._report(machine, view, beaten, who, owner[places], line, lines[places], "written at once by", places)
        for at, lanes, line, now in self.reads:
            places, who = _chosen(at, lanes), everyone[lanes]
            writer = owner[places]
            met = (writer >= 0) & self._unordered(writer, who, epoch[places], now)
            self._report(machine, view, met, who, writer, line, lines[places], "read by", places)

    @staticmethod
    def _unordered(first: Ints, second: Ints, then: Ints, now: int) -> Bools:
        """Different threads, with no syncwarp between them."""
        apart: Bools = np.asarray(first != second)
        if now or then.any():
            apart &= (first // WARP != second // WARP) | (then == now)
        return apart

    def _report(
        self, machine: Machine, view: View, met: Bools, who: Ints, other: Ints, line: int, lines: Ints, verb: str,
        places: Ints,
    ) -> None:  # fmt: skip
        if not met.any():
            return
        apart = met & (who // WARP != other // WARP)  # two warps make the plainer case
        i = int(np.argmax(apart if apart.any() else met))
        mine, theirs = machine.thread_of(int(who[i])), machine.thread_of(int(other[i]))
        element = view.element(int(places[i]) % self.size)
        text = (
            f"{element} is {verb} thread {mine} in line {line} and written by thread {theirs} in line "
            f"{int(lines[i])}, with no barrier between"
        )
        machine.fault("race", line, view.name, text, lane=int(who[i]), count=int(np.count_nonzero(met)))


class Local(Storage):
    """A thread's own array: registers, as long as every index is known when compiling."""

    space = "local"

    def __init__(self, machine: Machine, size: int, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)
        self.values: list[Any] = [None] * size
        self.whole = machine.mask  # lanes that the array exists for
        self.alignment = 16

    def require_aligned(self, machine: Machine, view: View, place: Offsets, width: int, line: int) -> None:
        pass  # registers have no address

    def read(
        self, machine: Machine, view: View, place: Offsets, width: int, wrong: Bools | None, line: int
    ) -> list[Value]:
        self._record(machine, view, place, width, "read", line)
        if type(place) is int:
            found = self.values[place : place + width]
            if all(value is not None for value in found):
                return found
        return [self._at(machine, view, place + v, line) for v in range(width)]

    def _at(self, machine: Machine, view: View, place: Offsets, line: int) -> Value:
        if type(place) is int:
            value = self.values[place]
            if value is None:
                machine.read_uninitialised(line, view, place - view.start, machine.mask.bits, self.dtype.kind == "f")
                return _blank(self.dtype)
            return value
        rows = [np.broadcast_to(_blank(self.dtype) if v is None else v, place.shape) for v in self.values]
        return np.stack(rows)[place.clip(0, len(rows) - 1), np.arange(len(place))]

    def write(
        self, machine: Machine, view: View, place: Offsets, values: list[Value], wrong: Bools | None, line: int
    ) -> None:
        self._record(machine, view, place, len(values), "write", line)
        for v, value in enumerate(values):
            value = self._cast(value)
            if type(place) is int:
                old = self.values[place + v]
                keep = machine.mask is self.whole or old is None
                self.values[place + v] = value if keep else np.where(machine.mask.bits, value, old)
            else:
                for i, old in enumerate(self.values):
                    lanes = machine.mask.bits & (place + v == i)
                    if lanes.any():
                        self.values[i] = np.where(lanes, value, _blank(self.dtype) if old is None else old)

    def _cast(self, value: Value) -> Value:
        if type(value) is int or type(value) is bool:
            return self.dtype.type(value)
        return value if value.dtype is self.dtype else value.astype(self.dtype)

    def _record(self, machine: Machine, view: View, place: Offsets, width: int, op: str, line: int) -> None:
        if machine.ledger.recording:
            bits = 8 * self.dtype.itemsize * width
            tally = machine.ledger.tally(Key(line, self.space, op, view.name, bits))
            tally.add(machine.mask.count, Cost(machine.mask.warps, 0, 0, 0))
            if type(place) is not int:
                machine.ledger.note(f"{view.name} is indexed by a value that differs between threads: it cannot stay "
                                    "in registers")  # fmt: skip


def _nans(size: int, dtype: Any) -> Array:
    return np.full(size, np.nan, dtype)


def _blank(dtype: np.dtype[Any]) -> Value:
    return dtype.type(np.nan if dtype.kind == "f" else 0)


def _lanes(condition: Any, mask: Mask) -> int:
    """Active lanes for which it holds."""
    if uniform(condition):
        return mask.count if condition else 0
    return int(np.count_nonzero(condition & mask.bits))


def _chosen(at: Any, lanes: Bools) -> Ints:
    return np.broadcast_to(np.asarray(at), lanes.shape)[lanes]


def _scatter(data: Array, at: Any, value: Any, lanes: Bools) -> None:
    if type(at) is int:
        # all lanes write the same element: the last one's value stays
        last = np.broadcast_to(np.asarray(value), lanes.shape)[lanes][-1:]
        if len(last):
            data[at] = last[0]
        return
    data[at[lanes]] = value if np.ndim(value) == 0 else value[lanes]


def _same(a: Array, b: Array) -> Bools:
    return np.asarray((a == b) | ((a != a) & (b != b)))


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
