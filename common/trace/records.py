"""Arrays that kernels make, and arrays of records: each field is an array of its own, and a record is the place of
its fields."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from common.catalog import device, limits
from common.trace.cost import Bools
from common.trace.memory import Constant, Global, require_constants
from common.trace.shared import Local, Names, Shared
from common.trace.state import State
from common.trace.values import Value
from common.trace.views import Offsets, View


class Record:
    """A record of an array, for each lane the one that it chose; ``line`` is where it did."""

    def __init__(self, state: State, view: View, place: Offsets, wrong: Bools | None, line: int) -> None:
        self._state, self._view, self._place, self._wrong, self._line = state, view, place, wrong, line

    def __getattr__(self, name: str) -> Value:
        return self.load(self._state, name, self._line)

    def _kind(self, state: State, name: str, line: int) -> Any:
        fields = self._view.dtype.fields or {}
        if name not in fields:
            raise state.unknown(line, f"{self._view.name} has no field {name}")
        return fields[name][0]

    def _field(self, state: State, name: str, line: int) -> View:
        """The field of all records, one element or record each; of an array field, this record's array."""
        whole, kind = self._view, self._kind(state, name, line)
        storage, said = whole.storage.field(state, name), f"{whole.name}.{name}"
        if storage is None:
            raise state.unknown(line, f"{said}: records whose size the array's elements do not divide are not traced")
        if kind.subdtype:
            apart = storage.apart
            return View(storage, self._place * apart, kind.shape, View.of(storage, kind.shape).strides, said)
        return View(storage, whole.start, whole.shape, whole.strides, said, whole.bounded)

    def load(self, state: State, name: Any, line: int) -> Any:
        view, kind = self._field(state, name, line), self._kind(state, name, line)
        if kind.subdtype:
            return view
        if kind.names:
            return Record(state, view, self._place, self._wrong, line)
        return view.storage.read(state, view, self._place, 1, self._wrong, line)[0]

    def store(self, state: State, name: Any, value: Any, line: int) -> None:
        view, kind = self._field(state, name, line), self._kind(state, name, line)
        if kind.subdtype:
            for index in np.ndindex(kind.shape):
                one = value.load(state, index, line) if isinstance(value, View) else np.asarray(value)[index]
                view.store(state, index, one, line)
        elif kind.names:
            Record(state, view, self._place, self._wrong, line).copy(state, value, line)
        else:
            view.storage.write(state, view, self._place, [value], self._wrong, line)

    def copy(self, state: State, other: Any, line: int) -> None:
        """Assign to all fields what another record, or one of the host, has."""
        for name in self._view.dtype.names or ():
            value = other.load(state, name, line) if isinstance(other, Record) else other[name]
            self.store(state, name, value, line)


class _Field(Global):
    """One field of the records of an allocation; a record's bytes lie between one element and the next."""

    def __init__(self, whole: Records, name: str) -> None:
        super().__init__(whole.data[name], None, whole.beginning(name))
        self.pitch = whole.pitch


class _ArrayField(Global):
    """A field that is an array in each record: elements of the whole allocation, of which the field's lie ``apart``
    from one record to the next."""

    def __init__(self, whole: Records, name: str) -> None:
        first: Any = whole.data[name]
        size = first.dtype.itemsize
        count = (len(whole.data) - 1) * whole.pitch // size + math.prod(first.shape[1:]) if len(whole.data) else 0
        flat = np.lib.stride_tricks.as_strided(first.reshape(-1) if not count else first, (count,), (size,))
        super().__init__(flat, None, whole.beginning(name))
        self.apart = whole.pitch // size


class Records(Global):
    """An allocation of records in global memory, or those that are a field of others."""

    def __init__(self, data: Any, written: Bools | None, address: int, pitch: int = 0) -> None:
        super().__init__(data, None, address)
        self.pitch = pitch or self.pitch
        self._fields: dict[str, Global | None] = {}

    def beginning(self, name: str) -> int:
        """Where the first record's field begins."""
        assert self.dtype.fields is not None
        return self.address + int(self.dtype.fields[name][1])

    def field(self, state: State, name: str) -> Global | None:
        """The field's storage; None of an array field whose elements do not divide a record."""
        if name not in self._fields:
            self._fields[name] = self._made(name)
        found = self._fields[name]
        if found is not None:
            found.begin(state.log, True)  # no look at the code tells which fields a kernel writes
        return found

    def _made(self, name: str) -> Global | None:
        assert self.dtype.fields is not None
        kind = self.dtype.fields[name][0]
        if kind.names:
            return Records(self.data[name], None, self.beginning(name), self.pitch)
        if not kind.subdtype:
            return _Field(self, name)
        divides = self.pitch % kind.base.itemsize == 0 and not kind.base.names
        return _ArrayField(self, name) if divides else None

    def read(
        self, state: State, view: View, place: Offsets, width: int, wrong: Bools | None, line: int,
        op: str = "read",
    ) -> list[Value]:  # fmt: skip
        return [Record(state, view, place, wrong, line)]

    def write(
        self, state: State, view: View, place: Offsets, values: list[Value], wrong: Bools | None, line: int
    ) -> None:
        Record(state, view, place, wrong, line).copy(state, values[0], line)


class OwnRecords(Global):
    """Records in shared memory or of a thread: ``make`` makes a field's storage, of so many elements of a dtype."""

    def __init__(self, dtype: Any, size: int, make: Callable[[int, Any], Any]) -> None:
        self.dtype, self._size, self._make, self.names = np.dtype(dtype), size, make, None
        self._made: dict[str, Any] = {}

    def field(self, state: State, name: str) -> Any:
        if name not in self._made:
            assert self.dtype.fields is not None
            kind = self.dtype.fields[name][0]
            if kind.names:
                self._made[name] = OwnRecords(kind, self._size, self._make)
            else:
                apart = math.prod(kind.shape)
                self._made[name] = self._make(self._size * apart, kind.base)
                self._made[name].apart = apart
        return self._made[name]

    read, write = Records.read, Records.write

    def settle(self, state: State, view: View, present: Bools | None) -> None:
        for name, storage in self._made.items():
            if isinstance(storage, Shared | OwnRecords):
                own = View(storage, view.start, view.shape, view.strides, f"{view.name}.{name}")
                storage.settle(state, own, present)


def _in_shared_memory(state: State, size: int, dtype: Any, alignment: int = 0) -> OwnRecords:
    return OwnRecords(dtype, size, lambda count, kind: Shared(state, count, kind, kind.itemsize))


def _of_a_thread(state: State, size: int, dtype: Any) -> OwnRecords:
    return OwnRecords(dtype, size, lambda count, kind: Local(state, count, kind))


# --- arrays that kernels make ---


def _shape(shape: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in shape) if type(shape) is tuple else (int(shape),)


def shared_memory(state: State, line: int, shape: Any, dtype: Any, alignment: int = 0) -> View:
    """One array per place in the code, however often that is reached; the dynamic ones are all the same memory."""
    extents, kind = _shape(shape), np.dtype(dtype.dtype)
    if extents == (0,):
        return _dynamic(state, line, kind, alignment)
    key = state.here()
    if key not in state.shared:
        static = _static_bytes(state) + math.prod(extents) * kind.itemsize
        limits.require_shared(static, state.shared_bytes, device.played())
        made = _in_shared_memory if kind.names else state.shared_storage
        storage = made(state, math.prod(extents), kind, alignment or kind.itemsize)
        state.shared[key] = View.of(storage, extents)
    view: View = state.shared[key]
    return view


def _static_bytes(state: State) -> int:
    return sum(view.size * view.dtype.itemsize for key, view in state.shared.items() if key[0] != "dynamic")


_UNIT = 16  # bytes that a block's dynamic shared memory is a multiple of, in the tracer


def _dynamic(state: State, line: int, kind: np.dtype[Any], alignment: int) -> View:
    """All of a block's dynamic shared memory, as elements of one type."""
    limits.require_shared(_static_bytes(state), state.shared_bytes, device.played())
    key, extents = ("dynamic", kind.str), (state.shared_bytes // kind.itemsize,)
    others = [view.storage for k, view in state.shared.items() if k[0] == "dynamic" and k != key]
    if others and (state.has_engines or kind.names):
        raise state.unknown(line, f"dynamic shared memory is used as {kind} and as {others[0].dtype}: not traced")
    if key not in state.shared:
        size = max(1, -(-state.shared_bytes // _UNIT) * _UNIT // kind.itemsize)
        made = _in_shared_memory if kind.names else state.shared_storage
        storage = made(state, size, kind, alignment or _UNIT)
        if others:  # the same bytes: who has written them is known no more
            storage.data = others[0].data.view(np.uint8).view(kind)
            for one in (storage, *others):
                one.written[:] = one.complete = True
        state.shared[key] = View.of(storage, extents)
    storage = state.shared[key].storage
    if not state.sites:
        state.sites[state.here()] = state.shared[key]
    if state.here() not in state.sites:
        state.sites[state.here()] = View.of(storage, extents)
        names = next((one.storage.names for one in state.sites.values() if one.storage.names), None)
        for one in () if state.has_engines or kind.names else state.sites.values():
            one.storage.names = names = names or Names(storage.data.nbytes)
    view: View = state.sites[state.here()]
    return view


def local_memory(state: State, line: int, shape: Any, dtype: Any, alignment: int = 0) -> View:
    extents = _shape(shape)
    make = _of_a_thread if dtype.dtype.names else Local
    storage = make(state, math.prod(extents), dtype.dtype)
    if state.has_engines:
        state.engines.locals[state.engines.teams.now].add(storage)
    return View.of(storage, extents)


def constant_memory(state: State, line: int, array: Any) -> View:
    if type(array) is not View or not isinstance(array.storage, Constant):
        raise state.error(line, "const.array_like takes an array that stands outside the kernel")
    require_constants(state)
    return array
