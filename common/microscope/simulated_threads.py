"""Which of a cluster's threads runs, and at which line of its kernel; how it waits, and what ends it.

For the parts of :class:`common.microscope.asynchronous.Machine`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.microscope.order import Clocks

Array = NDArray[Any]


class AsynchronousError(RuntimeError):
    """A kernel uses the asynchronous machine in a way that cannot be carried out."""


class DeadlockError(AsynchronousError):
    """Threads wait for what never comes."""


class WarpgroupError(AsynchronousError):
    """The 128 threads of a warpgroup do not come to one wgmma."""


class DescriptorError(AsynchronousError):
    """A descriptor names what is no operand."""


class BarrierError(AsynchronousError):
    """A barrier is used before it is there, or counts what it cannot."""


class OperandError(AsynchronousError):
    """An instruction is given what it does not take."""


class Parked(NamedTuple):
    """Why a thread cannot go on: the call and line where it waits, and what for."""

    call: str
    line: int
    wants: Callable[[], str]
    urgent: bool = False


def plain(array: Any) -> Array:
    """An array as NumPy has it."""
    found: Array = getattr(array, "_array", getattr(array, "_ary", array))
    return found


def named(value: Any, frame: FrameType) -> str:
    """What the frame calls a value."""
    return next((name for name, one in frame.f_locals.items() if one is value), "the array")


class Threads:
    """Those of the blocks of a cluster, numbered throughout."""

    def __init__(self, blocks: list[Any]) -> None:
        self.blocks, self.size = blocks, blocks[0].size
        self.module = blocks[0].module
        self.clocks = Clocks(len(blocks) * self.size)
        self._file = blocks[0].function.__code__.co_filename
        self._tiles: dict[tuple[int, int], tuple[Any, int]] = {}  # known to be tiles, by rank: with itemsize

    def here(self) -> tuple[Any, int, FrameType]:
        """The block that runs, the thread's number in the cluster, and the kernel's frame.

        That is the innermost one in the kernel's own file, whose lines readers know.
        """
        block = self.module.block
        inner = sys._getframe(2)
        frame: FrameType | None = inner
        while frame is not None and frame.f_code.co_filename != self._file:
            frame = frame.f_back
        return block, block.rank * self.size + self.module.thread.number, frame or inner

    def require_rank(self, call: str, rank: int, line: int) -> None:
        """Raises OperandError for a block that the cluster does not have."""
        if not 0 <= rank < len(self.blocks):
            raise OperandError(f"{call} at line {line}: there is no block {rank} in a cluster of {len(self.blocks)}")

    def require_tiles(self, call: str, line: int, tiles: Any) -> int:
        """Bytes of an element of the tiles. Raises OperandError for another array."""
        rank = self.module.block.rank
        known = self._tiles.get((rank, id(tiles)))
        if known and known[0] is tiles:
            return known[1]
        memory = self.module.block.allocations.bytes
        raw = plain(tiles)
        if not isinstance(raw, np.ndarray) or raw.ndim != 1 or not raw.size or raw.ctypes.data != memory.ctypes.data:
            raise OperandError(f"{call} at line {line}: tiles must be half_tiles() or float_tiles(), all of the "
                               "dynamic shared memory that the launch asks for")  # fmt: skip
        self._tiles[rank, id(tiles)] = tiles, raw.itemsize
        return raw.itemsize
