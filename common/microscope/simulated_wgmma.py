"""wgmma in the simulator: operands are read, and sums are added up, when the threads wait for them.

Until then the sums' registers hold no number; what threads write there is lost.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from common.microscope import boxes
from common.microscope.fragments import cut_to_tf32
from common.microscope.simulated_threads import (
    Array,
    DescriptorError,
    OperandError,
    Parked,
    Threads,
    WarpgroupError,
    plain,
)

WARPGROUP = 128


@dataclass(eq=False)
class _Product:
    """A wgmma of a warpgroup: what its threads have told of it so far."""

    call: str
    place: tuple[Any, int]
    line: int
    given: tuple[Any, ...]  # i, a, b, N, and how many bytes an element of the tiles has
    left: Array | None  # None: A is in registers
    right: Array
    parts: list[Any]  # by thread of the warpgroup: the sums, which are in no register now
    fragments: list[Any]  # of A, if it is in registers

    def carry_out(self, memory: Array) -> None:
        """Read the operands, add up the product. Raises WarpgroupError unless all threads have come to it."""
        _, _, _, N, itemsize = self.given
        absent = [number for number, part in enumerate(self.parts) if part is None]
        if absent:
            raise WarpgroupError(f"{self.call} at line {self.line}: {len(absent)} threads of the warpgroup "
                                 f"do not come to it, such as its thread {absent[0]}: all 128 must")  # fmt: skip
        elements = memory.view(f"f{itemsize}")
        left = _exact(self._from_registers() if self.left is None else elements[self.left])
        sums = np.array(self.parts).reshape(4, 8, 4, N // 8, 2, 2)
        matrix = sums.transpose(0, 4, 1, 3, 2, 5).reshape(64, N)
        # Products are exact in float64, and the sum is rounded once: as in lessons/tensorcores.py.
        matrix = (matrix.astype(np.float64) + left @ _exact(elements[self.right]).T).astype(np.float32)
        dealt = matrix.reshape(4, 2, 8, N // 8, 4, 2).transpose(0, 2, 4, 3, 1, 5).reshape(WARPGROUP, N // 2)
        for part, values in zip(self.parts, dealt, strict=True):
            part[:] = values

    def _from_registers(self) -> Array:
        """A, 64 x 8 or 64 x 16, from its threads' registers as they are now."""
        values = np.array(self.fragments).reshape(4, 8, 4, 2, 2, -1)
        return values.transpose(0, 4, 1, 3, 2, 5).reshape(64, -1)


@dataclass(eq=False)
class _Group:
    products: list[_Product] = field(default_factory=list)
    committed: int = 0  # by so many threads


@dataclass(eq=False)
class _Warpgroup:
    groups: list[_Group] = field(default_factory=list)
    waiting: list[Any] = field(default_factory=list)


@dataclass(eq=False)
class _Sums:
    """Registers of a thread that belong to the matrix unit: what it holds of them, and the last group that adds."""

    array: Any
    start: int
    values: Array
    group: int

    def land(self) -> None:
        """The registers are the thread's again."""
        stop = self.start + len(self.values)
        plain(self.array)[self.start : stop] = self.values
        if hasattr(self.array, "flat_write"):
            self.array.flat_write(self.start, stop, self.values)


@dataclass(eq=False)
class _Own:
    """What one thread has under way."""

    groups: int = 0  # committed
    waited: int = 0
    open: int = 0  # products since the last commit
    sums: dict[tuple[int, int, int], _Sums] = field(default_factory=dict)  # by array, start and stop


class MatrixUnit:
    """Products of a cluster's warpgroups that are under way."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._warpgroups: dict[tuple[int, int], _Warpgroup] = defaultdict(_Warpgroup)  # by block and number
        self._own: dict[int, _Own] = defaultdict(_Own)

    def fence(self) -> None:
        """Here the matrix unit sees at once what a thread sets."""

    def multiply(
        self, call: str, acc: Any, i: Any, tiles: Any, a: Any, b: Any, N: Any, fragment: tuple[Any, Any] | None = None
    ) -> None:
        """Start acc[i:i+N/2] += A @ B; all 128 threads of the warpgroup come to it.

        ``fragment``: the array, and the index, of the values of A in the thread's registers; ``a`` is 0 then.
        """
        block, thread, frame = self._threads.here()
        line, number = frame.f_lineno, self._threads.module.thread.number
        itemsize = self._threads.require_tiles(call, line, tiles)
        i, a, b, N = int(i), int(a), int(b), int(N)
        group, own = self._warpgroups[block.rank, number // WARPGROUP], self._own[thread]
        if len(group.groups) == own.groups:
            group.groups.append(_Group())
        products = group.groups[own.groups].products
        given, place = (i, a, b, N, itemsize), (frame.f_code, frame.f_lasti)
        if len(products) == own.open:
            products.append(self._product(call, place, line, given, block, number // WARPGROUP))
        product = products[own.open]
        if product.given != given or product.place != place:
            raise WarpgroupError(f"{call} at line {line}: thread {number} of the block gives i, descriptors, N = "
                                 f"{given[:4]}, and others of its warpgroup {product.given[:4]} at line "
                                 f"{product.line}: all 128 threads must come to one wgmma with the same")  # fmt: skip
        own.open += 1
        product.parts[number % WARPGROUP] = _taken(call, line, own, acc, i, i + N // 2).values
        if fragment is not None:
            product.fragments[number % WARPGROUP] = _lent(call, line, *fragment, itemsize)

    def _product(
        self, call: str, place: Any, line: int, given: tuple[int, ...], block: Any, number: int
    ) -> _Product:  # fmt: skip
        """A wgmma that the first thread comes to, with its operands' places."""
        _, a, b, N, itemsize = given
        if self._threads.size < (number + 1) * WARPGROUP:
            raise OperandError(f"{call} at line {line}: a wgmma is of 128 threads, and the block has "
                               f"{self._threads.size}")  # fmt: skip
        if N % 8 or not 8 <= N <= 256:
            raise OperandError(f"{call} at line {line}: N is {N}: must be a multiple of 8 from 8 to 256")
        if itemsize != (4 if call.startswith("wgmma_tf32") else 2):
            raise OperandError(f"{call} at line {line}: elements of the tiles have {itemsize} bytes")
        depth = 32 // itemsize
        try:
            left = None if call.endswith("_registers") else boxes.operand(a, 64, depth, itemsize)
            right = boxes.operand(b, N, depth, itemsize, call.startswith("wgmma_f16_rows"))
        except ValueError as error:
            raise DescriptorError(f"{call} at line {line}: {error}") from None
        size = block.allocations.bytes.size
        for name, bits, places in (("a", a, left), ("b", b, right)):
            last = -1 if places is None else (int(places.max()) + 1) * itemsize - 1
            if last >= size:
                raise DescriptorError(f"{call} at line {line}: descriptor {name}, {boxes.decoded(bits)}, reaches "
                                      f"byte {last} of the tiles, and there are {size}")  # fmt: skip
        return _Product(call, place, line, given, left, right, [None] * WARPGROUP, [None] * WARPGROUP)

    def commit(self) -> None:
        block, thread, _ = self._threads.here()
        own, number = self._own[thread], self._threads.module.thread.number
        group = self._warpgroups[block.rank, number // WARPGROUP]
        if len(group.groups) == own.groups:
            group.groups.append(_Group())
        found = group.groups[own.groups]
        if own.open < len(found.products):
            line = found.products[own.open].line
            raise WarpgroupError(f"{found.products[own.open].call} at line {line}: thread {number} of the block does "
                                 "not come to it, and others of its warpgroup do: all 128 threads must")  # fmt: skip
        found.committed += 1
        own.groups += 1
        own.open = 0
        if found.committed == WARPGROUP:
            for sleeper in group.waiting:
                block.wake(sleeper)
            group.waiting.clear()

    def wait(self, pending: Any) -> None:
        """Let this thread's groups be done, but for the youngest ``pending``."""
        block, thread, frame = self._threads.here()
        own = self._own[thread]
        done = own.groups - int(pending)
        if done <= own.waited:
            return
        group = self._warpgroups[block.rank, self._threads.module.thread.number // WARPGROUP]
        while group.groups[done - 1].committed < WARPGROUP:
            last = group.groups[done - 1]
            group.waiting.append(self._threads.module.thread)

            def wants(last: _Group = last) -> str:
                return f"{WARPGROUP - last.committed} other threads of the warpgroup to commit the same wgmma"

            block.park(Parked("wgmma_wait", frame.f_lineno, wants))
        for one in group.groups[own.waited : done]:
            for product in one.products:
                product.carry_out(block.allocations.bytes)
            one.products = []
        own.waited = done
        for key, sums in list(own.sums.items()):
            if sums.group < done:
                del own.sums[key]
                sums.land()


def _taken(call: str, line: int, own: _Own, acc: Any, start: int, stop: int) -> _Sums:
    """The sums leave the registers, if they have not yet."""
    raw = plain(acc)
    found = own.sums.get((id(raw), start, stop))
    if found is not None:
        found.group = own.groups
        return found
    if raw.dtype != np.float32:
        raise OperandError(f"{call} at line {line}: sums are float32, and these are {raw.dtype}")
    if start < 0 or stop > raw.size:
        raise IndexError(f"{call} at line {line}: elements {start} to {stop - 1} of {raw.size} sums")
    if hasattr(acc, "flat_read"):
        acc.flat_read(start, stop)
        acc.under_way(start, stop)
    found = own.sums[id(raw), start, stop] = _Sums(acc, start, raw[start:stop].copy(), own.groups)
    raw[start:stop] = np.nan
    return found


def _lent(call: str, line: int, frag: Any, j: Any, itemsize: int) -> Array:
    """A's values in a thread's registers, as they are read later."""
    raw, j, count = plain(frag), int(j), 16 // itemsize
    if raw.dtype != np.dtype(f"f{itemsize}"):
        raise OperandError(f"{call} at line {line}: A is float{8 * itemsize}, and this is {raw.dtype}")
    if j < 0 or j + count > raw.size:
        raise IndexError(f"{call} at line {line}: elements {j} to {j + count - 1} of {raw.size} of A")
    if hasattr(frag, "flat_read"):
        frag.flat_read(j, j + count)
    return raw[j : j + count]


def _exact(values: Array) -> Array:
    """Elements as float64; of float32 what TF32 has of them."""
    return (cut_to_tf32(values) if values.dtype == np.float32 else values).astype(np.float64)
