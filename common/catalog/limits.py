"""What a block of threads may take on any GPU this book runs on (CUDA C++ Programming Guide, compute capabilities 5.0
to 12.0): a launch beyond it is refused, with the figures."""

from __future__ import annotations

import math
import numbers
from typing import Any, NoReturn

import numpy as np

from common.catalog import occupancy

MAX_THREADS = occupancy.MAX_THREADS_PER_BLOCK
MAX_BLOCK = (1024, 1024, 64)
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_SHARED = 48 * 1024  # bytes of shared arrays whose shape is fixed
MAX_CONSTANT = 64 * 1024  # bytes of all arrays that a kernel takes from outside, which Numba compiles into it
# What a launch may ask for beyond that, and all together: CUDA C++ Programming Guide, "Technical Specifications per
# Compute Capability" ("Maximum amount of shared memory per thread block"): 64 KiB on 7.5, 163 on 8.0 and 8.7, 99 on
# 8.6, 8.9 and 12.0, 227 on 9.0 and 10.0. That is a multiprocessor's, less what the driver takes for each block.
MAX_CLUSTER = 8  # blocks: "Thread Block Clusters" there, the most that every GPU which has clusters takes
CLUSTERS_FROM = (9, 0)  # compute capability
MOST_SHARED = {name: has.shared_bytes - has.reserved_bytes for name, has in occupancy.LIMITS.items()}


class LaunchLimitError(RuntimeError):
    """A launch that no GPU accepts."""


class StreamError(LaunchLimitError):
    """Work on another stream than the default one."""


class LaunchFormError(LaunchLimitError):
    """A call of a kernel that is no launch: without a grid or a block, or with something else in their place."""


def require_launch(
    grid: tuple[int, ...],
    block: tuple[int, ...],
    dynamic_shared: int = 0,
    capability: str | None = None,
    cluster: int = 1,
) -> None:
    """Raise LaunchLimitError naming the axis, the number of threads or the bytes of shared memory that are too large.

    ``dynamic_shared`` is in bytes; ``cluster`` as for :func:`require_cluster`. Without a compute capability, what
    some GPU takes is allowed.
    """
    if math.prod(block) > MAX_THREADS:
        raise LaunchLimitError(f"block {block} has {math.prod(block)} threads: a block holds at most {MAX_THREADS}")
    for name, extents, most in (("block", block, MAX_BLOCK), ("grid", grid, MAX_GRID)):
        for axis, extent, limit in zip("xyz", extents, most, strict=False):
            if isinstance(extent, bool) or not 1 <= extent <= limit:
                raise LaunchLimitError(f"{name} {extents}: {axis} must be from 1 to {limit}")
    require_shared(0, dynamic_shared, capability)
    require_cluster(grid, cluster, capability)


def cluster_of(launch_bounds: Any) -> int:
    """Blocks along x that run as a cluster, from a kernel's ``launch_bounds``: (threads, blocks, cluster); else 1."""
    bounds = launch_bounds if isinstance(launch_bounds, tuple | list) else ()
    return int(bounds[2]) if len(bounds) > 2 else 1


def require_cluster(grid: tuple[int, ...], cluster: int, capability: str | None = None) -> None:
    """Raise LaunchLimitError if a grid, in blocks, cannot run in clusters of so many blocks along x.

    Without a compute capability, what some GPU takes is allowed.
    """
    if cluster == 1:
        return
    if not 1 <= cluster <= MAX_CLUSTER:
        raise LaunchLimitError(f"a cluster of {cluster} blocks: must be of 1 to {MAX_CLUSTER}")
    if capability and tuple(int(part) for part in capability.removesuffix("a").split(".")) < CLUSTERS_FROM:
        lacks = f"compute capability {capability} has no clusters, {'.'.join(map(str, CLUSTERS_FROM))} and newer have"
        raise LaunchLimitError(f"a cluster of {cluster} blocks: {lacks}")
    if grid[0] % cluster:
        raise LaunchLimitError(f"grid {grid} in clusters of {cluster} blocks: x must be a multiple of {cluster}")


def most_shared(capability: str | None = None) -> int:
    """Bytes of shared memory that a block may have on a GPU of this compute capability; on some GPU without one."""
    return MOST_SHARED.get(capability or "", max(MOST_SHARED.values()))


def require_shared(static: int, dynamic: int, capability: str | None = None) -> None:
    """Raise LaunchLimitError if a block has less shared memory than its arrays and the launch ask for, in bytes."""
    most = most_shared(capability) if dynamic and static <= MAX_SHARED else MAX_SHARED
    if static + dynamic > most:
        of_arrays = f"the shared arrays take {static} bytes"
        of_launch = f"the launch asks for {dynamic} bytes of dynamic shared memory"
        said = " and ".join(text for text, size in ((of_arrays, static), (of_launch, dynamic)) if size)
        together = f", {static + dynamic} together" if static and dynamic else ""
        where = f" on compute capability {capability}" if capability in MOST_SHARED else ""
        raise LaunchLimitError(f"{said}{together}: a block has at most {most}{where}")


def require_constant(size: int) -> None:
    """Raise LaunchLimitError if arrays of so many bytes do not fit constant memory."""
    if size > MAX_CONSTANT:
        said = f"the host arrays that the kernel names take {size} bytes of constant memory, whichever way they come"
        raise LaunchLimitError(f"{said}: it holds {MAX_CONSTANT}")


def require_configuration(kernel: str, given: Any) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Grid and block, of three axes each, and bytes of dynamic shared memory, from what stands in ``kernel[...]``.

    Raises LaunchFormError naming what is missing or no whole number, StreamError for another stream than the default.
    """
    wanted = f"{kernel}[grid, block]"
    if not isinstance(given, tuple):
        raise LaunchFormError(f"{kernel}[{_shown(given)}] has a grid and no block: write {wanted}")
    if not 2 <= len(given) <= 4:
        inside = ", ".join(map(_shown, given))
        raise LaunchFormError(f"{kernel}[{inside}] has {len(given)} items: write {wanted}, then perhaps a stream, "
                               "then perhaps bytes of dynamic shared memory")  # fmt: skip
    stream = given[2] if len(given) > 2 else 0
    if isinstance(stream, int) and stream:
        raise LaunchFormError(f"{kernel}[grid, block, {stream}]: the third item is a stream, and {stream} is none; "
                               "bytes of dynamic shared memory are the fourth")  # fmt: skip
    if not _default(stream):
        refuse_stream()
    dynamic = given[3] if len(given) > 3 else 0
    if not _whole(dynamic) or dynamic < 0:
        raise LaunchFormError(f"{_shown(dynamic)} bytes of dynamic shared memory: must be a whole number from 0 on")
    return _extents("grid", given[0]), _extents("block", given[1]), int(dynamic)


def refuse_stream(*_: Any, **__: Any) -> NoReturn:
    """Raise StreamError."""
    raise StreamError("work on another stream: a launch is checked and timed on the default stream, which waits for "
                      "no other")  # fmt: skip


# What stands in the place of the functions of ``numba.cuda`` that make streams.
STREAMS: dict[str, Any] = {
    **dict.fromkeys(("stream", "external_stream", "per_thread_default_stream"), refuse_stream),
    **dict.fromkeys(("default_stream", "legacy_default_stream"), lambda: 0),
}


def _default(stream: Any) -> bool:
    try:
        return stream is None or int(stream) in (0, 1)  # the driver has two names for it
    except TypeError:
        return False


def _extents(name: str, given: Any) -> tuple[int, ...]:
    """One to three whole numbers as three."""
    extents = tuple(given) if isinstance(given, tuple | list) else (given,)
    if not 1 <= len(extents) <= 3:
        raise LaunchFormError(f"{name} {_shown(given)} has {len(extents)} axes: must have 1, 2 or 3")
    for extent in extents:
        if not _whole(extent):
            hint = ": / gives a float, // a whole number" if isinstance(extent, float | np.floating) else ""
            raise LaunchFormError(f"{name} {_shown(given)} holds {_shown(extent)}, a {type(extent).__name__}: "
                                   f"sizes are whole numbers{hint}")  # fmt: skip
    return tuple(map(int, (*extents, 1, 1)))[:3]


def _whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def require_kernel(name: str, device: bool, grid: object, keywords: dict[str, Any]) -> None:
    """Raise LaunchFormError for a call from the host that starts no kernel: ``name(...)`` without grid and block."""
    if device:
        raise LaunchFormError(f"{name} is a device function: only kernels may call it")
    if grid is None:
        said = f"a kernel is started by {name}[grid, block](...)"
        raise LaunchFormError(f"{name}(...) has no grid and no block: {said}")
    if keywords:
        call = f"{name}[grid, block]({', '.join(f'{key}=...' for key in keywords)})"
        raise LaunchFormError(f"{call}: a kernel takes its arguments by their order, not by name")


def require_registers(block: tuple[int, ...], registers: int) -> None:
    """Raise LaunchLimitError when a block of threads with ``registers`` each does not fit a multiprocessor."""
    threads = math.prod(block)
    taken = occupancy.block_registers(threads, registers)
    if taken > occupancy.REGISTERS:
        said = f"{registers} registers for each of {threads} threads make {taken}"
        raise LaunchLimitError(f"{said}: a multiprocessor has {occupancy.REGISTERS}")
