"""Arrays of records: each field is an array of its own, and a record is the place of its fields."""

from __future__ import annotations

from typing import Any

import numpy as np

from common.trace.cost import Bools
from common.trace.memory import Global
from common.trace.shared import Local, Shared
from common.trace.state import State
from common.trace.values import Value
from common.trace.views import Offsets, View


class Record:
    """A record of an array, for each lane the one that it chose; ``line`` is where it did."""

    def __init__(self, state: State, view: View, place: Offsets, wrong: Bools | None, line: int) -> None:
        self._state, self._view, self._place, self._wrong, self._line = state, view, place, wrong, line

    def __getattr__(self, name: str) -> Value:
        return self.load(self._state, name, self._line)

    def _field(self, state: State, name: str, line: int) -> View:
        whole = self._view
        fields = whole.dtype.fields or {}
        if name not in fields:
            raise state.unknown(line, f"{whole.name} has no field {name}")
        if fields[name][0].subdtype or fields[name][0].names:
            raise state.unknown(line, f"{whole.name}: arrays and records within records are not traced")
        storage = whole.storage.field(state, name)
        return View(storage, whole.start, whole.shape, whole.strides, f"{whole.name}.{name}", whole.bounded)

    def load(self, state: State, name: Any, line: int) -> Value:
        view = self._field(state, name, line)
        found: Value = view.storage.read(state, view, self._place, 1, self._wrong, line)[0]
        return found

    def store(self, state: State, name: Any, value: Value, line: int) -> None:
        view = self._field(state, name, line)
        view.storage.write(state, view, self._place, [value], self._wrong, line)

    def copy(self, state: State, other: Any, line: int) -> None:
        """Assign to all fields what another record, or one of the host, has."""
        for name in self._view.dtype.names or ():
            value = other.load(state, name, line) if isinstance(other, Record) else other[name]
            self.store(state, name, value, line)


class _Field(Global):
    """One field of the records of an allocation; a record's bytes lie between one element and the next."""

    def __init__(self, whole: Records, name: str) -> None:
        assert whole.dtype.fields is not None
        super().__init__(whole.data[name], None, whole.address + whole.dtype.fields[name][1])
        self.pitch = whole.dtype.itemsize


class Records(Global):
    """An allocation of records in global memory."""

    def __init__(self, data: Any, written: Bools | None, address: int) -> None:
        super().__init__(data, None, address)
        self._fields: dict[str, Global] = {}

    def field(self, state: State, name: str) -> Global:
        return self._fields.setdefault(name, _Field(self, name))

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
    """Records in shared memory or of a thread: ``make`` makes a field's storage, of this dtype."""

    def __init__(self, dtype: Any, make: Any) -> None:
        self.dtype, self._make, self.names = np.dtype(dtype), make, None
        self._made: dict[str, Any] = {}

    def field(self, state: State, name: str) -> Any:
        if name not in self._made:
            assert self.dtype.fields is not None
            self._made[name] = self._make(self.dtype.fields[name][0])
        return self._made[name]

    read, write = Records.read, Records.write

    def settle(self, state: State, view: View, present: Bools | None) -> None:
        for name, storage in self._made.items():
            if isinstance(storage, Shared):
                own = View(storage, view.start, view.shape, view.strides, f"{view.name}.{name}")
                storage.settle(state, own, present)


def in_shared_memory(state: State, size: int, dtype: Any, alignment: int = 0) -> OwnRecords:
    return OwnRecords(dtype, lambda kind: Shared(state, size, kind, kind.itemsize))


def of_a_thread(state: State, size: int, dtype: Any) -> OwnRecords:
    return OwnRecords(dtype, lambda kind: Local(state, size, kind))
