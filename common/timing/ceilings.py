"""This GPU's ceilings, measured: copy bandwidth, FP32 multiply-add rate, and what its tensor cores reach."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct

from common.catalog.problems import FLOAT16, Problem
from common.catalog.schema import Count, Positive
from common.timing import tensorcores
from common.timing.timing import Stopwatch, Timing

COPY_BYTES = 1 << 31  # read; as many are written
PIECE = 1 << 23  # float64 numbers sent at a time
COPY_THREADS = 512
FMA_THREADS = 256
FMA_BLOCKS_PER_MULTIPROCESSOR = 8
FMA_ROUNDS = 2048
FMA_UNROLL = 16
FMA_CHAINS = 8


class Ceilings(Struct, kw_only=True, omit_defaults=True):
    """Copy bandwidth in GB/s (bytes read plus written) and multiply-add rates in GFLOP/s, with their timings; those
    of tensor cores by instruction and kind (:func:`common.timing.tensorcores.measure`)."""

    copy_gbs: Positive
    fma_gflops: Positive
    copy_bytes: Count | None = None
    copy: Timing | None = None
    fma_flops: Count | None = None
    fma: Timing | None = None
    mma_f16_gflops: Positive | None = None
    mma_f16: Timing | None = None
    mma_tf32_gflops: Positive | None = None
    mma_tf32: Timing | None = None
    wgmma_f16_gflops: Positive | None = None
    wgmma_f16: Timing | None = None
    wgmma_tf32_gflops: Positive | None = None
    wgmma_tf32: Timing | None = None


def kernels() -> tuple[Any, Any]:
    """The copy and the multiply-add kernel; built on demand because Numba must not be imported too early."""
    from numba import cuda, float32, uint32

    @cuda.jit
    def copy(source: Any, target: Any) -> None:
        # four 8-byte loads in flight per thread, each coalesced over the warp
        i = uint32(cuda.blockIdx.x) * uint32(4 * COPY_THREADS) + uint32(cuda.threadIdx.x)
        first = source[i]
        second = source[i + uint32(COPY_THREADS)]
        third = source[i + uint32(2 * COPY_THREADS)]
        fourth = source[i + uint32(3 * COPY_THREADS)]
        target[i] = first
        target[i + uint32(COPY_THREADS)] = second
        target[i + uint32(2 * COPY_THREADS)] = third
        target[i + uint32(3 * COPY_THREADS)] = fourth

    @cuda.jit
    def multiply_add(factor: Any, summand: Any, rounds: Any, out: Any) -> None:
        # eight independent chains hide the latency of each multiply-add
        i = cuda.grid(1)
        a0 = float32(i)
        a1 = a0 + float32(1)
        a2 = a0 + float32(2)
        a3 = a0 + float32(3)
        a4 = a0 + float32(4)
        a5 = a0 + float32(5)
        a6 = a0 + float32(6)
        a7 = a0 + float32(7)
        for _ in range(rounds):
            for _ in range(FMA_UNROLL):
                a0 = a0 * factor + summand
                a1 = a1 * factor + summand
                a2 = a2 * factor + summand
                a3 = a3 * factor + summand
                a4 = a4 * factor + summand
                a5 = a5 * factor + summand
                a6 = a6 * factor + summand
                a7 = a7 * factor + summand
        out[i] = a0 + a1 + a2 + a3 + a4 + a5 + a6 + a7

    return copy, multiply_add


# By precision: with what a step multiplies, and how many products it takes for one.
_PRODUCTS = {"fp32": ("fp32", 1), "tf32": ("tf32", 1), "tf32x3": ("tf32", 3)}


def instruction(requires: str | None) -> str:
    """The one of :data:`common.timing.tensorcores.INSTRUCTIONS` that bounds a step on tensor cores.

    ``wgmma`` for one that requires the compute capability which has it, and is written for it; else ``mma``.
    """
    slower, faster = tensorcores.INSTRUCTIONS
    return faster if requires == tensorcores.WGMMA_ON else slower


def peak(
    ceilings: Ceilings, problem: Problem, precision: str = "fp32", instruction: str = tensorcores.INSTRUCTIONS[0]
) -> float | None:
    """The multiply-add rate in GFLOP/s that bounds a step of this precision on a problem.

    That of the FP32 units; for float16 arrays and for ``precision`` tf32 that of tensor cores by this instruction, a
    third of it for tf32x3. It is None if it was not measured.
    """
    kind, products = ("f16", 1) if problem.input_dtype == FLOAT16 else _PRODUCTS[precision]
    if kind == "fp32":
        return ceilings.fma_gflops
    rate: float | None = getattr(ceilings, f"{instruction}_{kind}_gflops")
    return None if rate is None else rate / products


def complete(ceilings: Ceilings, capability: str) -> bool:
    """Are there all that a GPU of this compute capability has?"""
    names = [f"{one}_{kind.name}" for one in tensorcores.instructions(capability) for kind in tensorcores.KINDS]
    return all(getattr(ceilings, f"{name}_gflops") is not None for name in names)


def measure(stopwatch: Stopwatch, multiprocessors: int, room: int, capability: str) -> Ceilings:
    """Those of the current GPU, in ``room`` bytes; ``capability`` is its compute capability, such as ``"9.0"``."""
    from numba import cuda

    copy, multiply_add = kernels()

    per_block = 4 * COPY_THREADS
    blocks = min(COPY_BYTES, room // 4) // 8 // per_block
    source = cuda.device_array(blocks * per_block, np.float64)
    numbers = cuda.to_device(np.arange(min(source.size, PIECE), dtype=np.float64))
    for start in range(0, source.size, numbers.size):
        part = source[start : start + numbers.size]
        part.copy_to_device(numbers[: part.size])
    target = cuda.device_array_like(source)

    def run_copy() -> None:
        copy[blocks, COPY_THREADS](source, target)

    run_copy()
    copy_time = stopwatch.measure(run_copy)

    grid = multiprocessors * FMA_BLOCKS_PER_MULTIPROCESSOR
    out = cuda.device_array(grid * FMA_THREADS, np.float32)
    factor, summand = np.float32(0.999), np.float32(0.001)

    def run_fma() -> None:
        multiply_add[grid, FMA_THREADS](factor, summand, FMA_ROUNDS, out)

    run_fma()
    fma_time = stopwatch.measure(run_fma)

    bytes_moved = 2 * source.nbytes
    flops = 2 * FMA_CHAINS * FMA_UNROLL * FMA_ROUNDS * grid * FMA_THREADS
    return Ceilings(
        copy_gbs=bytes_moved / copy_time.median_ms / 1e6,
        copy_bytes=bytes_moved,
        copy=copy_time,
        fma_gflops=flops / fma_time.median_ms / 1e6,
        fma_flops=flops,
        fma=fma_time,
        **tensorcores.measure(stopwatch, multiprocessors, capability),
    )
