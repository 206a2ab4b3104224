"""What a block of threads may take on any GPU this book runs on (CUDA C++ Programming Guide, compute capabilities 5.0
to 12.0): a launch beyond it is refused, with the figures."""

from __future__ import annotations

import math

WARP = 32
MAX_THREADS = 1024
MAX_BLOCK = (1024, 1024, 64)
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_SHARED = 48 * 1024  # bytes of shared arrays whose shape is fixed
MAX_REGISTERS = 65536
_REGISTER_UNIT = 256  # a warp gets registers in pieces of this many


class LaunchLimitError(RuntimeError):
    """A launch that no GPU accepts."""


def require_launch(grid: tuple[int, ...], block: tuple[int, ...]) -> None:
    """Raise LaunchLimitError naming the axis, or the number of threads, that is too large."""
    if math.prod(block) > MAX_THREADS:
        raise LaunchLimitError(f"block {block} has {math.prod(block)} threads: a block holds at most {MAX_THREADS}")
    for name, extents, most in (("block", block, MAX_BLOCK), ("grid", grid, MAX_GRID)):
        for axis, extent, limit in zip("xyz", extents, most, strict=False):
            if not 1 <= extent <= limit:
                raise LaunchLimitError(f"{name} {extents}: {axis} must be from 1 to {limit}")


def require_registers(block: tuple[int, ...], registers: int) -> None:
    """Raise LaunchLimitError when a block of threads with ``registers`` each does not fit a multiprocessor."""
    warps = -(-math.prod(block) // WARP)
    taken = warps * -(-registers * WARP // _REGISTER_UNIT) * _REGISTER_UNIT
    if taken > MAX_REGISTERS:
        raise LaunchLimitError(
            f"{registers} registers for each of {math.prod(block)} threads make {taken}: "
            f"a multiprocessor has {MAX_REGISTERS}"
        )
