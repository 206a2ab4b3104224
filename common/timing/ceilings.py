"""This GPU's ceilings, measured: copy bandwidth, FP32 multiply-add rate, and what its tensor cores reach.

Tensor cores multiply random data, as zeros take less power and so run faster: ``mma.sync`` fragments that stay in
registers, from compute capability 8.0 on; ``wgmma`` tiles that stay in shared memory, on 9.0 alone.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from msgspec import Struct, field

from common.catalog import codes
from common.catalog.problems import FLOAT16, INT8, UINT8, UINT16, Problem
from common.catalog.store import Positive
from common.run.messages import Timing
from common.timing.timing import Stopwatch

COPY_BYTES = 1 << 31  # read; as many are written
PIECE = 1 << 23  # float64 numbers sent at a time
COPY_THREADS, COPY_LOADS = 512, 4
FMA_THREADS, FMA_BLOCKS_PER_MULTIPROCESSOR = 256, 8
FMA_ROUNDS, FMA_UNROLL, FMA_CHAINS = 2048, 16, 8
# What is multiplied on tensor cores, by which instruction: the depth of one along k.
DEPTHS = {
    "mma_f16": 16, "mma_tf32": 8, "mma_s8": 32,
    "wgmma_f16": 16, "wgmma_tf32": 8, "wgmma_s8": 32, "wgmma_e4m3": 32,
}  # fmt: skip
TENSOR_THREADS, TENSOR_ROUNDS = 256, 4096
BLOCKS_PER_MULTIPROCESSOR = {"mma": 2, "wgmma": 1}
MMA_ROWS, MMA_COLUMNS = 2, 4  # of fragments: each of A meets each of B, so eight sums are on their way
WGMMA_SUMS = 128  # of a thread, for 64 x 256 of a warpgroup; two warpgroups take turns
WGMMA_STEPS = 4  # instructions in a round: along a row of 128 bytes, 32 bytes each
# Multiply-adds of a thread in a round, over the depth: those of a warp, or of a warpgroup, shared by its threads.
MULTIPLIED = {"mma": 16 * 8 * MMA_ROWS * MMA_COLUMNS // 32, "wgmma": 64 * 256 * WGMMA_STEPS // 128}
A_BYTES, B_BYTES = 64 * 128, 256 * 128
# Of a K-major tile of rows of 128 bytes: groups of 8 rows are so far apart; the leading offset counts for nothing.
GROUP_BYTES, LEADING_BYTES = 1024, 16


class Ceilings(Struct, kw_only=True, omit_defaults=True):
    """Copy bandwidth in GB/s (bytes read plus written), multiply-add rates in GFLOP/s of the FP32 units and, by the
    names in DEPTHS, of tensor cores; ``timings`` by these names, ``copy`` and ``fma``. ``run``: the record's."""

    copy_gbs: Positive
    fma_gflops: Positive
    tensor_gflops: dict[str, Positive] = field(default_factory=dict)
    timings: dict[str, Timing] = field(default_factory=dict)
    run: str = ""


def _toolkit(name: str) -> Any:
    return import_module(f"lessons.toolkit.{name}")  # late, as Numba's import takes long


def kernels() -> tuple[Any, Any]:
    from numba import cuda, float32, float64, uint32

    unroll, unrolled = _toolkit("unroll").unroll, _toolkit("unroll").unrolled

    @cuda.jit
    @unroll
    def copy(source: Any, target: Any) -> None:
        # loads in flight per thread, each coalesced over the warp
        held = cuda.local.array(COPY_LOADS, float64)
        i = uint32(cuda.blockIdx.x) * uint32(COPY_LOADS * COPY_THREADS) + uint32(cuda.threadIdx.x)
        for part in unrolled(COPY_LOADS):
            held[part] = source[i + uint32(part * COPY_THREADS)]
        for part in unrolled(COPY_LOADS):
            target[i + uint32(part * COPY_THREADS)] = held[part]

    @cuda.jit
    @unroll
    def multiply_add(factor: Any, summand: Any, rounds: Any, out: Any) -> None:
        # independent chains hide the latency of each multiply-add
        i = cuda.grid(1)
        sums = cuda.local.array(FMA_CHAINS, float32)
        for chain in unrolled(FMA_CHAINS):
            sums[chain] = float32(i) + float32(chain)
        for _ in range(rounds):
            for _ in range(FMA_UNROLL):
                for chain in unrolled(FMA_CHAINS):
                    sums[chain] = sums[chain] * factor + summand
        total = float32(0.0)
        for chain in unrolled(FMA_CHAINS):
            total += sums[chain]
        out[i] = total

    return copy, multiply_add


def peak(ceilings: Ceilings, problem: Problem, precision: str = "fp32") -> float | None:
    """The multiply-add rate in GFLOP/s that bounds a step on a problem, None if not measured: that of the FP32 units,
    or of tensor cores by the card's fastest instruction."""
    kinds = {FLOAT16: "f16", UINT16: "f16", INT8: "s8", UINT8: "e4m3"}  # bfloat16 at the rate of float16
    kind = kinds.get(problem.input_dtype, "fp32" if precision == "fp32" else "tf32")
    if kind == "fp32":
        return ceilings.fma_gflops
    products = 3 if kind == "tf32" and precision == "tf32x3" else 1  # for one
    rates = [rate for name, rate in ceilings.tensor_gflops.items() if name.split("_")[1] == kind]
    return max(rates, default=0.0) / products or None


def complete(ceilings: Ceilings, capability: str) -> bool:
    """Are there all that a GPU of this compute capability has?"""
    return ceilings.tensor_gflops.keys() >= {*products(capability)}


def measure(stopwatch: Stopwatch, multiprocessors: int, room: int, capability: str) -> Ceilings:
    """Those of the current GPU, in ``room`` bytes; ``capability``: its compute capability, such as ``"9.0"``."""
    from numba import cuda

    timings: dict[str, Timing] = {}

    def rate(name: str, work: float, launch: Callable[[], object]) -> float:
        launch()
        timings[name] = stopwatch.measure(launch)
        return work / timings[name].median_ms / 1e6

    copy, multiply_add = kernels()
    per_block = COPY_LOADS * COPY_THREADS
    blocks = min(COPY_BYTES, room // 4) // 8 // per_block
    source = cuda.device_array(blocks * per_block, np.float64)
    numbers = cuda.to_device(np.arange(min(source.size, PIECE), dtype=np.float64))
    for start in range(0, source.size, numbers.size):
        part = source[start : start + numbers.size]
        part.copy_to_device(numbers[: part.size])
    target = cuda.device_array_like(source)
    copy_gbs = rate("copy", 2 * source.nbytes, partial(copy[blocks, COPY_THREADS], source, target))

    blocks = multiprocessors * FMA_BLOCKS_PER_MULTIPROCESSOR
    out = cuda.device_array(blocks * FMA_THREADS, np.float32)
    flops = 2 * FMA_CHAINS * FMA_UNROLL * FMA_ROUNDS * out.size
    given = np.float32(0.999), np.float32(0.001), FMA_ROUNDS, out
    fma_gflops = rate("fma", flops, partial(multiply_add[blocks, FMA_THREADS], *given))

    tensor_gflops: dict[str, float] = {}
    for name in products(capability):
        instruction = name.split("_")[0]
        out = cuda.device_array(multiprocessors * BLOCKS_PER_MULTIPROCESSOR[instruction] * TENSOR_THREADS, np.float32)
        words = cuda.to_device(random_words(name, (A_BYTES + B_BYTES) // 4))
        flops = 2 * MULTIPLIED[instruction] * DEPTHS[name] * TENSOR_ROUNDS * out.size
        run = kernel(name)[out.size // TENSOR_THREADS, TENSOR_THREADS]
        tensor_gflops[name] = rate(name, flops, partial(run, words, TENSOR_ROUNDS, out))
    return Ceilings(copy_gbs=copy_gbs, fma_gflops=fma_gflops, tensor_gflops=tensor_gflops, timings=timings)


# --- tensor cores ---


def products(capability: str) -> list[str]:
    """Those of DEPTHS that a GPU of this compute capability has."""
    has = {"mma": int(capability.split(".")[0]) >= 8, "wgmma": capability == "9.0"}
    return [name for name in DEPTHS if has[name.split("_")[0]]]


def random_words(name: str, count: int) -> np.ndarray[Any, Any]:
    """``count`` uint32 words of normals: two of float16, one that TF32 has, four of e4m3, or int8, times 32."""
    normals = np.random.default_rng(0).standard_normal(4 * count)
    if name.endswith("s8"):
        return np.clip(np.rint(32 * normals), -128, 127).astype(np.int8).view(np.uint32)
    if name.endswith("e4m3"):
        return codes.held(normals, codes.E4M3).view(np.uint32)
    if name.endswith("f16"):
        return normals[: 2 * count].astype(np.float16).view(np.uint32)
    return normals[:count].astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)


def kernel(name: str) -> Any:
    """The kernel ``(words, rounds, out)`` of one of DEPTHS, for blocks of TENSOR_THREADS; ``words`` are those of
    :func:`random_words`."""
    instruction, kind = name.split("_")
    return (_mma if instruction == "mma" else _wgmma)(kind)


def _mma(kind: str) -> Any:
    from numba import cuda, float32, int32, uint32

    cores, unroll, unrolled = _toolkit("mma"), _toolkit("unroll").unroll, _toolkit("unroll").unrolled
    a_words, b_words, sums = 4 * MMA_ROWS, 2 * MMA_COLUMNS, 4 * MMA_ROWS * MMA_COLUMNS
    multiply = {"f16": cores.mma_m16n8k16, "tf32": cores.mma_m16n8k8, "s8": cores.mma_m16n8k32_s8}[kind]
    value = int32 if kind == "s8" else float32

    @cuda.jit(launch_bounds=(TENSOR_THREADS, BLOCKS_PER_MULTIPROCESSOR["mma"]))
    @unroll
    def mma_sync(words: Any, rounds: Any, out: Any) -> None:
        a = cuda.local.array(a_words, uint32)
        b = cuda.local.array(b_words, uint32)
        acc = cuda.local.array(sums, value)
        lane = cuda.threadIdx.x
        for i in range(a_words):
            a[i] = words[lane + i * TENSOR_THREADS]
        for i in range(b_words):
            b[i] = words[lane + (a_words + i) * TENSOR_THREADS]
        for i in range(sums):
            acc[i] = value(0)
        for _ in range(rounds):
            for row in unrolled(MMA_ROWS):
                for column in unrolled(MMA_COLUMNS):
                    multiply(acc, 4 * (row * MMA_COLUMNS + column), a, 4 * row, b, 2 * column)
        total = float32(0.0)
        for i in range(sums):
            total += float32(acc[i])
        out[cuda.grid(1)] = total

    return mma_sync


def _wgmma(kind: str) -> Any:
    from numba import cuda, float32, int32, uint32, uint64

    hopper, unroll, unrolled = _toolkit("hopper"), _toolkit("unroll").unroll, _toolkit("unroll").unrolled
    a_words, all_words, columns = A_BYTES // 4, (A_BYTES + B_BYTES) // 4, 2 * WGMMA_SUMS
    multiply = getattr(hopper, f"wgmma_{kind}")
    value = int32 if kind == "s8" else float32

    @cuda.jit(launch_bounds=(TENSOR_THREADS, BLOCKS_PER_MULTIPROCESSOR["wgmma"]))
    @unroll
    def wgmma(words: Any, rounds: Any, out: Any) -> None:
        tiles = cuda.shared.array(all_words, uint32, alignment=1024)
        acc = cuda.local.array(WGMMA_SUMS, value)
        for i in range(cuda.threadIdx.x, all_words, TENSOR_THREADS):
            tiles[i] = words[i]
        hopper.fence_async()
        cuda.syncthreads()
        a = hopper.descriptor(tiles, 0, LEADING_BYTES, GROUP_BYTES)
        b = hopper.descriptor(tiles, a_words, LEADING_BYTES, GROUP_BYTES)
        for i in range(WGMMA_SUMS):
            acc[i] = value(0)
        for _ in range(rounds):
            hopper.wgmma_fence()
            for step in unrolled(WGMMA_STEPS):
                along = uint64(2 * step)  # 32 bytes
                multiply(acc, 0, tiles, a + along, b + along, columns)
            hopper.wgmma_commit()
            hopper.wgmma_wait(1)
        hopper.wgmma_wait(0)
        total = float32(0.0)
        for i in range(WGMMA_SUMS):
            total += float32(acc[i])
        out[cuda.grid(1)] = total

    return wgmma
