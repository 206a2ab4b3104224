"""How long a launch takes: CUDA events around it, a cold L2 cache, repeats until the median is known."""

import ctypes
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from common.catalog.store import Count, Name, Positive
from common.check import loading
from common.run.messages import MAX_SECONDS as MAX_SECONDS
from common.run.messages import Paired as Paired
from common.run.messages import Tile
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


class OfStep(Struct, kw_only=True, omit_defaults=True):
    """What was measured of a step's code, whose digest is ``source`` (:func:`common.catalog.cache.code`); in a record
    in the ``run`` of that key."""

    source: Name
    run: str = ""


class Epilogues(OfStep, kw_only=True):
    """A step's times with the epilogues of a module, ``ways``, of the code ``ways_source``; ``library`` is
    PyTorch's."""

    shape: dict[str, Count]
    found: list[Fused]
    ways: Name
    ways_source: str = ""
    library: str = ""


class Point(Struct, kw_only=True, omit_defaults=True):
    """A tile of a sweep: its time, or the ``reason`` why it has none."""

    tile: Tile
    status: Name
    median_ms: Positive | None = None
    reason: str | None = None


class Sweep(OfStep, kw_only=True):
    """A step's times over its tile constants, and those that it ships with."""

    points: list[Point]
    shipped: Tile = field(default_factory=dict)


class Compilers(OfStep, kw_only=True):
    """A step's times in turn: numba-cuda's kernels, and those of the ``successor``, which has its version."""

    shape: dict[str, Count]
    times: Paired
    successor: Name


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
