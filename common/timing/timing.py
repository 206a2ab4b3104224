"""How long a launch takes: CUDA events around it, a cold L2 cache, repeats until the median is known; and this GPU's
ceilings: copy bandwidth, FP32 multiply-add rate, and what its tensor cores reach.

Tensor cores multiply random data, as zeros take less power and so run faster: ``mma.sync`` fragments that stay in
registers, from compute capability 8.0 on; ``wgmma`` tiles that stay in shared memory, on 9.0 alone.
"""

from __future__ import annotations

import ctypes
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from common.catalog import codes
from common.catalog.problems import FLOAT16, INT8, UINT8, UINT16, Problem
from common.catalog.schema import Count, Name, Positive
from common.check import loading
from common.run.messages import MAX_SECONDS as MAX_SECONDS
from common.run.messages import Paired as Paired
from common.run.messages import Timing as Timing

MEASURE_VERSION = 1  # of how a time is taken; raised when times from before and after are not to be compared
TARGET_ERROR = 0.01
MIN_REPEATS, MIN_PAIRS = 10, 6
FEW_REPEATS, LONG_MS = 3, 10.0  # of a launch that takes longer
WARM_UP_SECONDS, SETTLED_BY_SECONDS, PAIR_SETTLED_BY_SECONDS = 0.06, 0.5, 0.1  # at least, and at most
SETTLED, JITTER_SECONDS = 0.01, 2e-6  # share by which medians of two parts of it may differ, and what the host may do
BATCH, BATCH_SECONDS = 5, 1.0  # launches that are queued together, and how long they last at most
MAX_LEAD = 64  # overwrites of the L2 cache, about 8 ms on an H200


def summarise(samples_ms: list[float]) -> Timing:
    """Median, p20, p80 and the median's error. The median's 95% interval runs between the samples of rank n/2 -+ 0.98
    sqrt(n) (the binomial interval in its normal approximation; Conover 1999, section 3.2)."""
    ordered = np.sort(np.asarray(samples_ms, dtype=np.float64))
    count, reach = len(ordered), 0.98 * math.sqrt(len(ordered))
    median, p20, p80 = (float(value) for value in np.percentile(ordered, (50, 20, 80)))
    low = max(0, math.floor(count / 2 - reach))
    high = min(count - 1, math.ceil(count / 2 + reach) - 1)
    error = float(ordered[high] - ordered[low]) / 2 / median if median > 0 else math.inf
    return Timing(median, p20, p80, error, count)


def collect(
    sample: Callable[[int], list[float]], clock: Callable[[], float] = time.perf_counter,
    target_error: float = TARGET_ERROR, min_repeats: int = MIN_REPEATS, max_seconds: float = MAX_SECONDS,
) -> Timing:  # fmt: skip
    """Call ``sample(count)``, which returns ``count`` times in ms, until the median is known to ``target_error`` and
    ``min_repeats`` are in (of a launch longer than LONG_MS: FEW_REPEATS), or ``max_seconds`` have passed."""
    samples: list[float] = []
    deadline = clock() + max_seconds
    while True:
        samples += sample(BATCH)
        timing = summarise(samples)
        enough = min(min_repeats, FEW_REPEATS) if timing.median_ms > LONG_MS else min_repeats
        if len(samples) >= enough and (timing.median_error <= target_error or clock() >= deadline):
            return timing


class Fused(Struct, kw_only=True, omit_defaults=True):
    """An epilogue's times in ms, in turn: ``alone`` the fused kernel's and the convolution's without one;
    ``separate`` and ``eager`` two kernels' and PyTorch's (in ``layout``), and the fused one's."""

    epilogue: Name
    saved_bytes: Count  # of traffic
    alone: Paired
    separate: Paired
    eager: Paired | None = None
    layout: str = ""


def collect_pairs(
    sample: Callable[[bool], tuple[float, float]], clock: Callable[[], float] = time.perf_counter, **limits: Any
) -> Paired:
    """Call ``sample(swapped)``, which returns the two times in ms of one pair, until their ratio is known, as
    :func:`collect` does: both meet the same clock frequency and heat. Which of them runs first alternates."""
    pairs: list[tuple[float, float]] = []

    def ratio(_: int) -> list[float]:
        first, second = sample(len(pairs) % 2 == 1)
        pairs.append((first, second))
        return [first / second]

    found = collect(ratio, clock, min_repeats=MIN_PAIRS, **limits)
    first, second = (summarise(list(times)) for times in zip(*pairs, strict=True))
    return Paired(first, second, found.median_ms, found.p20_ms, found.p80_ms, found.median_error)


class Stopwatch:
    """Times launches on the default stream of the current GPU, which Numba and PyTorch share. Before each the L2
    cache is overwritten, which also gives the host time to queue it; more often once the GPU got there first."""

    def __init__(self, l2_bytes: int) -> None:
        from numba import cuda
        from numba.cuda.cudadrv.driver import device_memset

        self._cuda = cuda
        scratch = cuda.device_array(loading.flush_bytes(l2_bytes), np.uint8)
        self._flush = partial(device_memset, scratch, 0, scratch.nbytes)
        self._clock = _clock_reader()
        self._clocks: list[int] = []  # megahertz
        self._queue = [(cuda.event(timing=True), cuda.event(timing=True)) for _ in range(BATCH)]
        self._lead = 1  # overwrites before each launch

    def _times(self, launches: Sequence[Callable[[], object]]) -> list[float]:
        """Milliseconds of each launch, one after the other; up to MAX_LEAD none of them waited for the host."""
        while True:
            late = False
            for launch, (start, end) in zip(launches, self._queue, strict=False):
                for _ in range(self._lead):
                    self._flush()
                start.record()
                launch()
                end.record()
                late |= start.query()  # the GPU was here before all of the launch, and its end, was queued
            if clock := self._clock():  # while the GPU is busy
                self._clocks.append(clock)
            self._cuda.synchronize()
            if not late or self._lead >= MAX_LEAD:
                return [float(start.elapsed_time(end)) for start, end in self._queue[: len(launches)]]
            self._lead *= 2

    def _warm_up(self, at_most: float, *calls: Callable[[], object]) -> float:
        """Call in turn until the medians of two parts of WARM_UP_SECONDS agree, or so long. The seconds of a turn."""
        began = end = time.perf_counter()
        before = math.inf
        self._clocks.clear()
        while True:
            turns: list[float] = []
            part = end
            while not turns or end - part < WARM_UP_SECONDS / 2:
                start = end
                for call in calls:
                    call()
                self._cuda.synchronize()
                end = time.perf_counter()
                turns.append(end - start)
            median = statistics.median(turns)
            if abs(median - before) <= max(SETTLED * median, JITTER_SECONDS) or end - began >= at_most:
                return median
            before = median

    def _clocked(self, timing: Timing) -> Timing:
        return replace(timing, sm_mhz=round(statistics.median(self._clocks))) if self._clocks else timing

    def measure(self, launch: Callable[[], object], **limits: Any) -> Timing:
        """Time ``launch``, which must have run before (so that it is compiled); ``limits`` as in :func:`collect`."""
        seconds = self._warm_up(SETTLED_BY_SECONDS, launch)

        def sample(count: int) -> list[float]:
            return self._times([launch] * max(1, min(count, int(BATCH_SECONDS / seconds) if seconds else count)))

        return self._clocked(collect(sample, **limits))

    def measure_pairs(self, first: Callable[[], object], second: Callable[[], object], **limits: Any) -> Paired:
        """Time two launches in turn; both must have run before."""
        self._warm_up(PAIR_SETTLED_BY_SECONDS, first, second)  # both meet the same clock

        def sample(swapped: bool) -> tuple[float, float]:
            one, other = self._times((second, first) if swapped else (first, second))
            return (other, one) if swapped else (one, other)

        pairs = collect_pairs(sample, **limits)
        return replace(pairs, first=self._clocked(pairs.first), second=self._clocked(pairs.second))


def _clock_reader() -> Callable[[], int]:
    """Says the clock of Numba's current GPU in megahertz, by NVML, while kernels run; 0 if that does not say."""
    from numba import cuda

    gpu, mhz, sm = ctypes.c_void_p(), ctypes.c_uint(0), 1  # NVML_CLOCK_SM
    try:
        nvml = ctypes.CDLL("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")
        name = cuda.get_current_device().uuid.encode()
        failed = nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(name, ctypes.byref(gpu))
        read = nvml.nvmlDeviceGetClockInfo
    except (OSError, AttributeError):  # an NVML that lacks a function counts as none
        return lambda: 0
    return lambda: 0 if failed or read(gpu, sm, ctypes.byref(mhz)) else mhz.value


# --- ceilings ---

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
    """Copy bandwidth in GB/s (bytes read plus written), multiply-add rates in GFLOP/s (see DEPTHS), and timings."""

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
    mma_s8_gflops: Positive | None = None
    mma_s8: Timing | None = None
    wgmma_s8_gflops: Positive | None = None
    wgmma_s8: Timing | None = None
    wgmma_e4m3_gflops: Positive | None = None
    wgmma_e4m3: Timing | None = None


def _toolkit(name: str) -> Any:
    return import_module(f"lessons.toolkit.{name}")  # late, as Numba's import takes long


def _simple_kernels() -> tuple[Any, Any]:
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
    measured = [getattr(ceilings, f"{one}_{kind}_gflops", None) for one in ("mma", "wgmma")]
    return max((rate / products for rate in measured if rate is not None), default=None)


def complete(ceilings: Ceilings, capability: str) -> bool:
    """Are there all that a GPU of this compute capability has?"""
    return all(getattr(ceilings, f"{name}_gflops") is not None for name in tensor_products(capability))


def measure_ceilings(stopwatch: Stopwatch, multiprocessors: int, room: int, capability: str) -> Ceilings:
    """Those of the current GPU, in ``room`` bytes; ``capability``: its compute capability, such as ``"9.0"``."""
    from numba import cuda

    found: dict[str, Any] = {}

    def timed(name: str, unit: str, work: float, launch: Callable[[], object]) -> None:
        launch()
        found[name] = stopwatch.measure(launch)
        found[f"{name}_{unit}"] = work / found[name].median_ms / 1e6

    copy, multiply_add = _simple_kernels()
    per_block = COPY_LOADS * COPY_THREADS
    blocks = min(COPY_BYTES, room // 4) // 8 // per_block
    source = cuda.device_array(blocks * per_block, np.float64)
    numbers = cuda.to_device(np.arange(min(source.size, PIECE), dtype=np.float64))
    for start in range(0, source.size, numbers.size):
        part = source[start : start + numbers.size]
        part.copy_to_device(numbers[: part.size])
    target = cuda.device_array_like(source)
    found["copy_bytes"] = 2 * source.nbytes
    timed("copy", "gbs", found["copy_bytes"], partial(copy[blocks, COPY_THREADS], source, target))

    blocks = multiprocessors * FMA_BLOCKS_PER_MULTIPROCESSOR
    out = cuda.device_array(blocks * FMA_THREADS, np.float32)
    found["fma_flops"] = 2 * FMA_CHAINS * FMA_UNROLL * FMA_ROUNDS * out.size
    given = np.float32(0.999), np.float32(0.001), FMA_ROUNDS, out
    timed("fma", "gflops", found["fma_flops"], partial(multiply_add[blocks, FMA_THREADS], *given))

    for name in tensor_products(capability):
        instruction = name.split("_")[0]
        out = cuda.device_array(multiprocessors * BLOCKS_PER_MULTIPROCESSOR[instruction] * TENSOR_THREADS, np.float32)
        words = cuda.to_device(random_words(name, (A_BYTES + B_BYTES) // 4))
        flops = 2 * MULTIPLIED[instruction] * DEPTHS[name] * TENSOR_ROUNDS * out.size
        run = tensor_kernel(name)[out.size // TENSOR_THREADS, TENSOR_THREADS]
        timed(name, "gflops", flops, partial(run, words, TENSOR_ROUNDS, out))
    return Ceilings(**found)


# --- tensor cores ---


def tensor_products(capability: str) -> list[str]:
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


def tensor_kernel(name: str) -> Any:
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
