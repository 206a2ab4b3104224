"""Arrays that kernels make, and arrays of records: each field is an array of its own, and a record is the place of
its fields."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
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

    def _field(self, state: State, name: str, line: int) -> tuple[View, Any]:
        """The field of all records, or of an array field this record's array; and its dtype."""
        whole, said = self._view, f"{self._view.name}.{name}"
        if name not in (whole.dtype.fields or {}):
            raise state.unknown(line, f"{whole.name} has no field {name}")
        kind, storage = whole.dtype.fields[name][0], whole.storage.field(name)
        if storage is None:
            raise state.unknown(line, f"{said}: records whose size the array's elements do not divide are not traced")
        if isinstance(storage, Global):
            storage.begin(state.log, True)  # no look at the code tells which fields a kernel writes
        if kind.subdtype:
            place = self._place * storage.apart
            return View(storage, place, kind.shape, View.of(storage, kind.shape).strides, said), kind
        return View(storage, whole.start, whole.shape, whole.strides, said, whole.bounded), kind

    def load(self, state: State, name: Any, line: int) -> Any:
        view, kind = self._field(state, name, line)
        if kind.subdtype:
            return view
        if kind.names:
            return Record(state, view, self._place, self._wrong, line)
        return view.storage.read(state, view, self._place, 1, self._wrong, line)[0]

    def store(self, state: State, name: Any, value: Any, line: int) -> None:
        view, kind = self._field(state, name, line)
        if kind.subdtype:
            for index in np.ndindex(kind.shape):
                one = value.load(state, index, line) if isinstance(value, View) else np.asarray(value)[index]
                view.store(state, index, one, line)
        elif kind.names:
            Record(state, view, self._place, self._wrong, line).copy(state, value, line)
        else:
            view.storage.write(state, view, self._place, [value], self._wrong, line)

    def copy(self, state: State, other: Any, line: int) -> None:
        for name in self._view.dtype.names or ():
            value = other.load(state, name, line) if isinstance(other, Record) else other[name]
            self.store(state, name, value, line)


class Records(Global):
    """An allocation of records in global memory, or those that are a field of others."""

    def __init__(self, data: Any, written: Bools | None, address: int, pitch: int = 0) -> None:
        super().__init__(data, None, address, pitch)
        self._fields: dict[str, Any] = {}

    def field(self, name: str) -> Any:
        """The field's storage: its own elements, a record's bytes apart; or, of an array field, elements of the whole
        allocation, the field's ``apart`` from one record to the next. None if they do not divide a record."""
        if name not in self._fields:
            self._fields[name] = self._made(name)
        return self._fields[name]

    def _made(self, name: str) -> Any:
        kind, offset = self.dtype.fields[name][:2]
        data, address, size = self.data[name], self.address + int(offset), kind.base.itemsize
        if not kind.subdtype:
            return (Records if kind.names else Global)(data, None, address, self.pitch)
        if self.pitch % size or kind.base.names:
            return None
        count = (len(data) - 1) * self.pitch // size + math.prod(kind.shape) if len(data) else 0
        flat = np.lib.stride_tricks.as_strided(data if count else data.reshape(-1), (count,), (size,))
        return Global(flat, None, address, size, self.pitch // size)

    def read(
        self, state: State, view: View, place: Offsets, width: int, wrong: Bools | None, line: int,
        op: str = "read",
    ) -> list[Value]:  # fmt: skip
        return [Record(state, view, place, wrong, line)]

    def write(
        self, state: State, view: View, place: Offsets, values: list[Value], wrong: Bools | None, line: int
    ) -> None:
        Record(state, view, place, wrong, line).copy(state, values[0], line)


class OwnRecords:
    """Records in shared memory or of a thread: ``make`` makes a field's storage, of so many elements of a dtype."""

    names = None

    def __init__(self, dtype: Any, size: int, make: Callable[[int, Any], Any]) -> None:
        self.dtype: Any = np.dtype(dtype)
        self._size, self._make = size, make
        self._fields: dict[str, Any] = {}

    field, read, write = Records.field, Records.read, Records.write

    def _made(self, name: str) -> Any:
        kind = self.dtype.fields[name][0]
        if kind.names:
            return OwnRecords(kind, self._size, self._make)
        apart = math.prod(kind.shape)
        made = self._make(self._size * apart, kind.base)
        made.apart = apart
        return made

    def settle(self, state: State, view: View, present: Bools | None) -> None:
        for name, storage in self._fields.items():
            if isinstance(storage, Shared | OwnRecords):
                own = View(storage, view.start, view.shape, view.strides, f"{view.name}.{name}")
                storage.settle(state, own, present)


def _shared(state: State, size: int, kind: np.dtype[Any], alignment: int) -> Any:
    if kind.names:
        return OwnRecords(kind, size, lambda count, part: Shared(state, count, part, part.itemsize))
    return state.shared_storage(state, size, kind, alignment)


def shared_memory(state: State, line: int, shape: Any, dtype: Any, alignment: int = 0) -> View:
    """One array per place in the code, however often that is reached; the dynamic ones are all the same memory."""
    extents, kind = tuple(map(int, shape if type(shape) is tuple else (shape,))), np.dtype(dtype.dtype)
    if extents == (0,):
        return _dynamic(state, line, kind, alignment)
    key = state.here()
    if key not in state.shared:
        static = _static_bytes(state) + math.prod(extents) * kind.itemsize
        limits.require_shared(static, state.shared_bytes, device.played())
        storage = _shared(state, math.prod(extents), kind, alignment or kind.itemsize)
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
        storage = _shared(state, size, kind, alignment or _UNIT)
        if others:  # the same bytes: who has written them is known no more
            storage.data = others[0].data.view(np.uint8).view(kind)
            for one in (storage, *others):
                one.written[:] = one.complete = True
        state.shared[key] = View.of(storage, extents)
    storage = state.shared[key].storage
    if (here := state.here()) not in state.sites:
        state.sites[here] = View.of(storage, extents) if state.sites else state.shared[key]
        if len(state.sites) > 1 and not (state.has_engines or kind.names):
            names = next((one.storage.names for one in state.sites.values() if one.storage.names), None)
            for one in state.sites.values():
                one.storage.names = names = names or Names(storage.data.nbytes)
    view: View = state.sites[here]
    return view


def local_memory(state: State, line: int, shape: Any, dtype: Any, alignment: int = 0) -> View:
    extents, kind = tuple(map(int, shape if type(shape) is tuple else (shape,))), dtype.dtype
    size, make = math.prod(extents), partial(Local, state)
    storage = OwnRecords(kind, size, make) if kind.names else make(size, kind)
    if state.has_engines:
        state.engines.locals[state.engines.teams.now].add(storage)
    return View.of(storage, extents)


def constant_memory(state: State, line: int, array: Any) -> View:
    if type(array) is not View or not isinstance(array.storage, Constant):
        raise state.error(line, "const.array_like takes an array that stands outside the kernel")
    require_constants(state)
    return array
