"""What a block of threads may take, and how many warps fit a multiprocessor: CUDA C++ Programming Guide, "Technical
Specifications per Compute Capability" (7.5 to 12.x), and for allocation granularities and the order of the rounding
``cuda_occupancy.h`` of the CUDA toolkit. Without a compute capability what some GPU takes is allowed.
"""

import math
import numbers
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from msgspec import Struct

from common.catalog.store import Amount, Count, Extent

Extents = tuple[int, ...]

WARP = 32
REGISTERS = 65536  # 32-bit registers of a multiprocessor, and at most of a block
REGISTER_UNIT = 256  # registers are handed out to a warp in units of this many
SCHEDULERS = 4  # each has a quarter of the registers
MAX_THREADS_PER_BLOCK, MAX_REGISTERS_PER_THREAD = 1024, 255
MAX_BLOCK, MAX_GRID = (1024, 1024, 64), (2**31 - 1, 65535, 65535)
MAX_SHARED = 48 * 1024  # bytes of shared arrays whose shape is fixed
MAX_CONSTANT = 64 * 1024  # bytes of all arrays that a kernel takes from outside, which Numba compiles into it
MAX_CLUSTER = 8  # blocks: "Thread Block Clusters" there, the most that every GPU which has clusters takes


@dataclass(frozen=True)
class Limits:
    """What one multiprocessor of a compute capability has."""

    threads: int
    blocks: int
    shared_bytes: int
    shared_unit: int = 128  # bytes; a block's shared memory is rounded up to it
    reserved_bytes: int = 1024  # of shared memory, taken by the driver for each block


LIMITS = {
    "7.5": Limits(1024, 16, 64 << 10, shared_unit=256, reserved_bytes=0),
    "8.0": Limits(2048, 32, 164 << 10),
    "8.6": Limits(1536, 16, 100 << 10),
    "8.7": Limits(1536, 16, 164 << 10),
    "8.9": Limits(1536, 24, 100 << 10),
    "9.0": Limits(2048, 32, 228 << 10),
    "10.0": Limits(2048, 32, 228 << 10),
    "10.3": Limits(2048, 32, 228 << 10),
    "12.0": Limits(1536, 24, 100 << 10),
    "12.1": Limits(1536, 24, 100 << 10),
}


class LaunchLimitError(RuntimeError):
    """A launch that no GPU accepts."""


class StreamError(LaunchLimitError):
    """Work on another stream than the default one."""


class LaunchFormError(LaunchLimitError):
    """A call of a kernel that is no launch: without a grid or a block, or with something else in their place."""


def require_launch(
    grid: Extents, block: Extents, dynamic_shared: int = 0, capability: str | None = None, cluster: int = 1
) -> None:
    """Raise LaunchLimitError naming what is too large."""
    if (threads := math.prod(block)) > MAX_THREADS_PER_BLOCK:
        raise LaunchLimitError(f"block {block} has {threads} threads: a block holds at most {MAX_THREADS_PER_BLOCK}")
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


def require_cluster(grid: Extents, cluster: int, capability: str | None = None) -> None:
    """Raise LaunchLimitError if a grid, in blocks, cannot run in clusters of so many blocks along x."""
    said = f"a cluster of {cluster} blocks"
    if not 1 <= cluster <= MAX_CLUSTER:
        raise LaunchLimitError(f"{said}: must be of 1 to {MAX_CLUSTER}")
    if cluster > 1 and capability and int(capability.partition(".")[0]) < 9:
        raise LaunchLimitError(f"{said}: compute capability {capability} has no clusters, 9.0 and newer have")
    if grid[0] % cluster:
        raise LaunchLimitError(f"grid {grid} in clusters of {cluster} blocks: x must be a multiple of {cluster}")


def most_shared(capability: str | None = None) -> int:
    """Bytes of shared memory that a block may have: a multiprocessor's, less what the driver takes for each block."""
    known = [LIMITS[capability]] if capability in LIMITS else LIMITS.values()
    return max(has.shared_bytes - has.reserved_bytes for has in known)


def require_shared(static: int, dynamic: int, capability: str | None = None) -> None:
    """Raise LaunchLimitError if a block has less shared memory than its arrays and the launch ask for, in bytes."""
    most = most_shared(capability) if dynamic and static <= MAX_SHARED else MAX_SHARED
    if static + dynamic > most:
        asked = f"the shared arrays take {static} bytes" if static else ""
        asked += " and " if static and dynamic else ""
        asked += f"the launch asks for {dynamic} bytes of dynamic shared memory" if dynamic else ""
        asked += f", {static + dynamic} together" if static and dynamic else ""
        where = f" on compute capability {capability}" if capability in LIMITS else ""
        raise LaunchLimitError(f"{asked}: a block has at most {most}{where}")


def require_constant(size: int) -> None:
    """Raise LaunchLimitError if arrays of so many bytes do not fit constant memory."""
    if size > MAX_CONSTANT:
        said = f"the host arrays that the kernel names take {size} bytes of constant memory, whichever way they come"
        raise LaunchLimitError(f"{said}: it holds {MAX_CONSTANT}")


def require_registers(block: Extents, registers: int) -> None:
    """Raise LaunchLimitError when a block of threads with ``registers`` each does not fit a multiprocessor."""
    threads = math.prod(block)
    if (taken := block_registers(threads, registers)) > REGISTERS:
        said = f"{registers} registers for each of {threads} threads make {taken}"
        raise LaunchLimitError(f"{said}: a multiprocessor has {REGISTERS}")


def require_configuration(kernel: str, given: Any) -> tuple[Extents, Extents, int]:
    """Grid and block, of three axes each, and bytes of dynamic shared memory, from what stands in ``kernel[...]``.
    Raises LaunchFormError naming what is missing or no whole number, StreamError."""
    if not isinstance(given, tuple):
        raise LaunchFormError(f"{kernel}[{given!r:.80}] has a grid and no block: write {kernel}[grid, block]")
    stream, dynamic = (*given[2:], 0, 0)[:2]
    bytes_first = isinstance(stream, int) and stream  # as the third item, where the stream belongs
    if bytes_first or not 2 <= len(given) <= 4 or not _whole(dynamic) or dynamic < 0:
        wanted = f"{kernel}[grid, block], then perhaps a stream, and bytes of dynamic shared memory as the fourth"
        raise LaunchFormError(f"{kernel}[{', '.join(f'{one!r:.80}' for one in given)}]: write {wanted}")
    if stream is not None and not (hasattr(stream, "__int__") and int(stream) in (0, 1)):  # the driver has two names
        refuse_stream()
    return _extents("grid", given[0]), _extents("block", given[1]), int(dynamic)


def refuse_stream(*_: Any, **__: Any) -> NoReturn:
    said = "a launch is checked and timed on the default stream, which waits for no other"
    raise StreamError(f"work on another stream: {said}")


# In place of the functions of ``numba.cuda`` that make streams.
STREAMS: dict[str, Any] = dict.fromkeys(("stream", "external_stream", "per_thread_default_stream"), refuse_stream)
STREAMS |= dict.fromkeys(("default_stream", "legacy_default_stream"), lambda: 0)


def _extents(name: str, given: Any) -> Extents:
    """One to three whole numbers as three."""
    extents = tuple(given) if isinstance(given, tuple | list) else (given,)
    if not 1 <= len(extents) <= 3:
        raise LaunchFormError(f"{name} {given!r:.80} has {len(extents)} axes: must have 1, 2 or 3")
    for extent in extents:
        if not _whole(extent):
            hint = ": / gives a float, // a whole number" if isinstance(extent, float | np.floating) else ""
            holds = f"{name} {given!r:.80} holds {extent!r:.80}, a {type(extent).__name__}"
            raise LaunchFormError(f"{holds}: sizes are whole numbers{hint}")
    x, y, z = (*extents, 1, 1)[:3]
    return int(x), int(y), int(z)


def _whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def require_kernel(name: str, device: bool, grid: object, keywords: dict[str, Any]) -> None:
    """Raise LaunchFormError for a call from the host that starts no kernel: ``name(...)`` without grid and block."""
    if device:
        raise LaunchFormError(f"{name} is a device function: only kernels may call it")
    if grid is None:
        started = f"a kernel is started by {name}[grid, block](...)"
        raise LaunchFormError(f"{name}(...) has no grid and no block: {started}")
    if keywords:
        call = f"{name}[grid, block]({', '.join(f'{key}=...' for key in keywords)})"
        raise LaunchFormError(f"{call}: a kernel takes its arguments by their order, not by name")


class Occupancy(Struct, frozen=True, omit_defaults=True):
    """Blocks and warps that fit one multiprocessor, and what limits them."""

    blocks: Count
    warps: Count
    max_warps: Extent
    fraction: Amount
    limited_by: list[str]
    block_limits: dict[str, int | None] = {}  # blocks that each alone would allow; None: the kernel does not use it


def limits(architecture: str) -> Limits:
    """Those of a compute capability such as ``"9.0"`` or ``"9.0a"``; raises ValueError listing the known ones."""
    if (name := architecture.removesuffix("a")) not in LIMITS:
        raise ValueError(f"compute capability {architecture!r} is unknown: known are {', '.join(LIMITS)}")
    return LIMITS[name]


def occupancy(architecture: str, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """Of blocks of threads that take ``registers`` each and ``shared_bytes`` together; raises ValueError."""
    has = limits(architecture)
    warps, most_warps = -(-threads // WARP), has.threads // WARP
    shared = _multiple(shared_bytes + has.reserved_bytes, has.shared_unit)
    of_a_warp = _multiple(registers * WARP, REGISTER_UNIT)
    by_registers = REGISTERS // SCHEDULERS // of_a_warp * SCHEDULERS // warps if registers else None
    if registers > MAX_REGISTERS_PER_THREAD or block_registers(threads, registers) > REGISTERS:
        by_registers = 0
    counts: dict[str, int | None] = {
        "threads": most_warps // warps if threads <= MAX_THREADS_PER_BLOCK else 0,
        "registers": by_registers,
        "shared memory": has.shared_bytes // shared if shared else None,
        "blocks": has.blocks,
    }
    blocks = min(count for count in counts.values() if count is not None)
    limited_by = [name for name, count in counts.items() if count == blocks]
    return Occupancy(blocks, blocks * warps, most_warps, round(blocks * warps / most_warps, 4), limited_by, counts)


def block_registers(threads: int, registers: int) -> int:
    """Registers that a launch takes a block of ``threads`` to need: its warps spread evenly over the schedulers."""
    return _multiple(registers * WARP, REGISTER_UNIT) * _multiple(-(-threads // WARP), SCHEDULERS)


def _multiple(value: int, unit: int) -> int:
    return -(-value // unit) * unit
