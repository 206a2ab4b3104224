"""Limits of a GPU that Numba's simulator does not know: a launch beyond them is refused here as there."""

from __future__ import annotations

import math
from typing import Any

MAX_THREADS = 1024
MAX_BLOCK = (1024, 1024, 64)
MAX_GRID = (2**31 - 1, 65535, 65535)


class LaunchLimitError(RuntimeError):
    """A grid or block that no GPU accepts (CUDA C++ Programming Guide, compute capabilities 5.0 to 12.0)."""


def enforce_limits() -> None:
    """From now on the simulator refuses what a GPU would."""
    from numba.cuda.simulator.kernel import FakeCUDAKernel

    configure = FakeCUDAKernel.__getitem__

    def checked(self: Any, configuration: Any) -> Any:
        kernel = configure(self, configuration)
        _require(kernel.grid_dim, kernel.block_dim)
        return kernel

    FakeCUDAKernel.__getitem__ = checked


def _require(grid: tuple[int, ...], block: tuple[int, ...]) -> None:
    if math.prod(block) > MAX_THREADS:
        raise LaunchLimitError(f"block {block} has {math.prod(block)} threads: a block holds at most {MAX_THREADS}")
    for name, extents, limits in (("block", block, MAX_BLOCK), ("grid", grid, MAX_GRID)):
        for axis, extent, limit in zip("xyz", extents, limits, strict=False):
            if not 1 <= extent <= limit:
                raise LaunchLimitError(f"{name} {extents}: {axis} must be from 1 to {limit}")
