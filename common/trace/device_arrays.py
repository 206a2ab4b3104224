"""Device arrays of the tracer: NumPy arrays that know what was written to them, and how a kernel sees an argument."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.machine_code.capture import HostArray
from common.trace.executor import Argument
from common.trace.hopper.tma import Map
from common.trace.memory import Global, poison, poisoned
from common.trace.records import Records
from common.trace.views import View, of_device

_ALIGNMENT = 256  # of an allocation's first byte (CUDA C++ Programming Guide, "Device Memory Accesses")


class DeviceArray(HostArray):
    """Stands in for a device array. ``storage`` is the allocation that it, or what it is a view of, was made with."""

    storage: Global | None

    def __array_finalize__(self, other: Any) -> None:
        self.storage = getattr(other, "storage", None)

    def __setitem__(self, index: Any, value: Any) -> None:
        np.asarray(self)[index] = np.asarray(value)
        self._mark(index, True)

    def poison(self) -> None:
        """From now on nothing has written here: what a launch reads before it writes it is at fault."""
        values = np.asarray(self)
        values[...] = poisoned(1, values.dtype)[0]
        if self.storage is not None and self.storage.written is None:
            self.storage.written = np.ones(len(self.storage.data), np.bool_)
        self._mark((), False)

    def _mark(self, index: Any, written: bool) -> None:
        if self.storage is not None and self.storage.written is not None:
            if self.dtype.itemsize != self.storage.dtype.itemsize:  # a view as another type
                first, end = (at - self.storage.address for at in np.lib.array_utils.byte_bounds(np.asarray(self)))
                size = self.storage.dtype.itemsize
                self.storage.written[first // size : -(-end // size)] = written
                return
            start = (self.__array_interface__["data"][0] - self.storage.address) // self.dtype.itemsize
            steps = tuple(stride // self.dtype.itemsize for stride in self.strides)
            flags = np.lib.stride_tricks.as_strided(self.storage.written[start:], self.shape, steps)
            flags[index] = written


def allocate(shape: Any, dtype: Any, values: Any = None) -> DeviceArray:
    """Device memory that holds ``values``, or what nobody has written."""
    shape = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    kind = np.dtype(dtype)
    count = math.prod(shape)
    raw = np.empty(count * kind.itemsize + _ALIGNMENT, np.uint8)
    address = raw.__array_interface__["data"][0]
    skip = -address % _ALIGNMENT
    data = raw[skip : skip + count * kind.itemsize].view(kind)
    if values is None:
        poison(data)
    else:
        data[:] = np.asarray(values, kind).reshape(-1)
    array: DeviceArray = data.reshape(shape).view(DeviceArray)
    make = Records if kind.names else Global
    array.storage = make(data, None if values is not None else np.zeros(count, np.bool_), address + skip)
    return array


def argument(value: Any, name: str, back: list[tuple[Any, DeviceArray]]) -> Argument:
    """An argument as a kernel sees it; an array of the host is copied to the device and, in ``back``, back."""
    found: Argument = np.float64(value) if isinstance(value, float) else value
    if isinstance(value, np.ndarray) and value.ndim:
        found = _seen(value, name, back)
    elif hasattr(value, "swizzle") and hasattr(value, "box"):  # a tensor map
        found = Map(_seen(np.asanyarray(value.array), name, back), value)
    elif isinstance(value, tuple):
        found = getattr(value, "_make", tuple)(argument(part, name, back) for part in value)
    return found


def _seen(array: NDArray[Any], name: str, back: list[tuple[Any, DeviceArray]]) -> View:
    view = of_device(array, name)
    if view is None:
        copied = allocate(array.shape, array.dtype, array)
        back.append((array, copied))
        view = of_device(copied, name)
        assert view is not None  # it lies in the device's memory
    return view


def kind(value: Any) -> Any:
    """What Numba compiles a kernel anew for."""
    if type(value) is View:
        return value.dtype.str, value.ndim, value.flat_order
    if type(value) is Map:
        return (Map,)
    if isinstance(value, tuple):
        return (type(value), *map(kind, value))
    return getattr(value, "dtype", type(value))
