"""How many warps of a kernel a multiprocessor holds at once, from the limits of each compute capability.

Limits: CUDA Programming Guide, "Technical Specifications per Compute Capability". Allocation granularities and the
order of the rounding: NVIDIA's occupancy calculator, ``cuda_occupancy.h`` of the CUDA toolkit. The result is an upper
bound (theoretical occupancy): it says what fits, not what a grid fills.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

WARP = 32
REGISTERS = 65536  # 32-bit registers of a multiprocessor, and at most of a block
REGISTER_UNIT = 256  # registers are handed out to a warp in units of this many
SCHEDULERS = 4  # each has a quarter of the registers
MAX_THREADS_PER_BLOCK = 1024
MAX_REGISTERS_PER_THREAD = 255


@dataclass(frozen=True)
class Limits:
    """What one multiprocessor of a compute capability has."""

    threads: int
    blocks: int
    shared_bytes: int
    shared_unit: int  # bytes; a block's shared memory is rounded up to it
    reserved_bytes: int  # of shared memory, taken by the driver for each block

    @property
    def warps(self) -> int:
        return self.threads // WARP


def _limits(threads: int, blocks: int, shared_kib: int) -> Limits:
    return Limits(threads, blocks, shared_kib * 1024, shared_unit=128, reserved_bytes=1024)


LIMITS = {
    "7.5": Limits(1024, 16, 64 * 1024, shared_unit=256, reserved_bytes=0),
    "8.0": _limits(2048, 32, 164),
    "8.6": _limits(1536, 16, 100),
    "8.7": _limits(1536, 16, 164),
    "8.9": _limits(1536, 24, 100),
    "9.0": _limits(2048, 32, 228),
    "10.0": _limits(2048, 32, 228),
    "10.3": _limits(2048, 32, 228),
    "12.0": _limits(1536, 24, 100),
    "12.1": _limits(1536, 24, 100),
}


class Fitting(TypedDict):
    """An :class:`Occupancy` ready for JSON."""

    blocks: int
    warps: int
    max_warps: int
    fraction: float
    limited_by: list[str]
    block_limits: dict[str, int | None]


@dataclass(frozen=True)
class Occupancy:
    """Blocks and warps that fit one multiprocessor, and how many blocks each resource alone would allow.

    ``block_limits`` has threads, registers, shared memory and blocks; None for what the kernel does not use.
    """

    blocks: int
    warps: int
    max_warps: int
    block_limits: dict[str, int | None]

    @property
    def fraction(self) -> float:
        return self.warps / self.max_warps

    @property
    def limited_by(self) -> list[str]:
        """The resources that no further block would fit into."""
        return [name for name, limit in self.block_limits.items() if limit == self.blocks]

    def as_dict(self) -> Fitting:
        return {
            "blocks": self.blocks,
            "warps": self.warps,
            "max_warps": self.max_warps,
            "fraction": round(self.fraction, 4),
            "limited_by": self.limited_by,
            "block_limits": dict(self.block_limits),
        }


def limits(architecture: str) -> Limits:
    """The limits of a compute capability such as ``"9.0"``, or of what is compiled for it alone, ``"9.0a"``.

    Raises ValueError listing the known ones.
    """
    architecture = architecture.removesuffix("a")
    if architecture not in LIMITS:
        raise ValueError(f"compute capability {architecture!r} is unknown: known are {', '.join(LIMITS)}")
    return LIMITS[architecture]


def occupancy(architecture: str, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """Occupancy of blocks of ``threads`` threads that take ``registers`` each and ``shared_bytes`` per block.

    Zero blocks if not even one fits. Raises ValueError for an unknown architecture or a count below zero.
    """
    has = limits(architecture)
    if threads < 1:
        raise ValueError(f"threads={threads}: a block has at least 1 thread")
    for name, value in (("registers", registers), ("shared_bytes", shared_bytes)):
        if value < 0:
            raise ValueError(f"{name}={value}: must not be negative")
    warps = -(-threads // WARP)
    counts: dict[str, int | None] = {
        "threads": has.warps // warps if threads <= MAX_THREADS_PER_BLOCK else 0,
        "registers": _by_registers(warps, registers),
        "shared memory": _by_shared(has, shared_bytes),
        "blocks": has.blocks,
    }
    blocks = min(count for count in counts.values() if count is not None)
    return Occupancy(blocks, blocks * warps, has.warps, counts)


def block_registers(threads: int, registers: int) -> int:
    """Registers that a launch takes a block of ``threads`` to need: its warps spread evenly over the schedulers."""
    warps = -(-threads // WARP)
    return _multiple(registers * WARP, REGISTER_UNIT) * _multiple(warps, SCHEDULERS)


def _by_registers(warps: int, registers: int) -> int | None:
    if registers == 0:
        return None
    if registers > MAX_REGISTERS_PER_THREAD or block_registers(warps * WARP, registers) > REGISTERS:
        return 0
    per_warp = _multiple(registers * WARP, REGISTER_UNIT)
    return REGISTERS // SCHEDULERS // per_warp * SCHEDULERS // warps


def _by_shared(has: Limits, shared_bytes: int) -> int | None:
    taken = _multiple(shared_bytes + has.reserved_bytes, has.shared_unit)
    if taken == 0:
        return None
    return has.shared_bytes // taken


def _multiple(value: int, unit: int) -> int:
    """The first multiple of ``unit`` from ``value`` on."""
    return -(-value // unit) * unit
