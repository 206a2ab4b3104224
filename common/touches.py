"""What the warps of a launch touch, counted in the simulator: sectors of global arrays, turns of shared banks.

A request is one access of the 32 lanes of a warp by one instruction. A sector is 32 bytes of global memory; a warp
that reads 32 neighbouring floats touches 4 or 5. Shared memory has 32 banks of 4 bytes; a request takes as many turns
as one bank has different words to deliver. A wide access counts as the accesses of one element it is made of.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType
from typing import Any
from unittest import mock

import numpy as np

WARP, BANKS, WORD, SECTOR = 32, 32, 4, 32

_Request = tuple[Any, ...]


@dataclass
class Touches:
    """Byte addresses by request: an instruction, its turn in each thread, a block and a warp."""

    on_global: dict[_Request, set[int]] = field(default_factory=lambda: defaultdict(set))
    on_shared: dict[_Request, set[int]] = field(default_factory=lambda: defaultdict(set))
    _count: dict[_Request, int] = field(default_factory=lambda: defaultdict(int))

    def sectors(self) -> float:
        """Sectors per request of the instruction that touches most; 0 without requests."""
        return _worst(self.on_global, lambda addresses: len({address // SECTOR for address in addresses}))

    def turns(self) -> float:
        """Turns per request of the instruction with most bank conflicts; 0 without requests."""
        return _worst(self.on_shared, turns)

    def add(self, requests: dict[_Request, set[int]], array: np.ndarray[Any, Any], index: Any) -> None:
        """One thread's access to one element, by the instruction two frames up."""
        thread: Any = threading.current_thread()
        frame = sys._getframe(2)
        instruction = frame.f_code, _place(frame.f_code, frame.f_lasti)
        block = tuple(thread.blockIdx)
        turn = (*instruction, block, thread.thread_id)
        self._count[turn] += 1
        places = index if isinstance(index, tuple) else (index,)
        offset = sum(int(i) * stride for i, stride in zip(places, array.strides, strict=False))
        address = array.__array_interface__["data"][0] + offset
        requests[(*instruction, self._count[turn], block, thread.thread_id // WARP)].add(address)


@functools.cache
def _place(code: CodeType, instruction: int) -> Any:
    """Where in the source an instruction stands: Python may rewrite it as it runs, and its offset then differs."""
    positions = getattr(code, "co_positions", None)
    return list(positions())[instruction // 2] if positions else instruction


def turns(addresses: set[int]) -> int:
    """Turns that shared memory takes to deliver the words at these byte addresses."""
    banks: dict[int, set[int]] = defaultdict(set)
    for address in addresses:
        banks[address // WORD % BANKS].add(address // WORD)
    return max(map(len, banks.values()))


def _worst(requests: dict[_Request, set[int]], cost: Any) -> float:
    """The cost per request, averaged over the requests of one instruction, of the costliest instruction."""
    by_instruction: dict[_Request, list[int]] = defaultdict(list)
    for request, addresses in requests.items():
        by_instruction[request[:2]].append(cost(addresses))
    return max((float(np.mean(costs)) for costs in by_instruction.values()), default=0.0)


@contextmanager
def counted() -> Iterator[Touches]:
    """Count what kernels touch meanwhile; in the simulator only."""
    from numba.cuda.simulator import kernelapi
    from numba.cuda.simulator.cudadrv.devicearray import FakeWithinKernelCUDAArray

    found = Touches()

    class Logged(np.ndarray[Any, Any]):
        def __getitem__(self, index: Any) -> Any:
            value = super().__getitem__(index)
            if not isinstance(value, np.ndarray):
                found.add(found.on_shared, self, index)
            return value

        def __setitem__(self, index: Any, value: Any) -> None:
            found.add(found.on_shared, self, index)
            super().__setitem__(index, value)

    read, write = FakeWithinKernelCUDAArray.__getitem__, FakeWithinKernelCUDAArray.__setitem__

    def getitem(array: Any, index: Any) -> Any:
        value = read(array, index)
        if not isinstance(value, FakeWithinKernelCUDAArray):
            found.add(found.on_global, _raw(array), index)
        return value

    def setitem(array: Any, index: Any, value: Any) -> None:
        found.add(found.on_global, _raw(array), index)
        write(array, index, value)

    def shared(self: Any, shape: Any, dtype: Any, alignment: int | None = None) -> Any:
        frame = sys._getframe(1)
        place = frame.f_code.co_filename, frame.f_lineno
        if place not in self._allocations:
            kind = kernelapi.numpy_support.as_dtype(dtype) if isinstance(dtype, kernelapi.types.Type) else dtype
            self._allocations[place] = np.empty(shape, kind).view(Logged)
        return self._allocations[place]

    with (
        mock.patch.object(FakeWithinKernelCUDAArray, "__getitem__", getitem),
        mock.patch.object(FakeWithinKernelCUDAArray, "__setitem__", setitem),
        mock.patch.object(kernelapi.FakeCUDAShared, "array", shared),
    ):
        yield found


def _raw(array: Any) -> Any:
    item = array._item
    return getattr(item, "_raw", None) if hasattr(item, "_raw") else item._ary
