"""How long the candidates of a layer take: `estimate` by a model, `measure` on the GPU."""

import importlib
import math
import statistics
from typing import NamedTuple

import numpy as np
from numba import cuda

from lessons.toolkit.tiles import ceil_div

layer_candidates = importlib.import_module("lessons.05_implicit_gemm.helpers.layer_candidates")

# The model's GPU: an NVIDIA H200, 132 multiprocessors at 1.886 GHz. Each clock, one issues 4 instructions of a warp
# and its L1 cache looks up one line of 128 bytes
INSTRUCTIONS_PER_MS = 996e6
LINES_PER_MS = 249e6
BYTES_PER_MS = 4.17e9  # copied within its memory
# Fitted to measured times of these kernels on that GPU
ISSUE_SHARE = 0.86  # of the issue slots, that a kernel with warps enough fills
ENOUGH_WARPS = 5.2  # so many resident warps hide 1 - 1/e of the latency
LOAD_LINE, STORE_LINE = 2.0, 5.6  # look-ups that a line costs, read and written

SAMPLE_BYTES = 1 << 30  # what a measured launch moves: no L2 cache holds it, and it takes longer than to queue one
ROUNDS = 7  # of a measurement: each launches every candidate once


class Estimate(NamedTuple):
    """The model's milliseconds, in all and for each of its limits."""

    ms: float
    limits: dict


def estimate(candidate, problem):
    """By the model, an Estimate: each limit alone, and all together, a little more than the longest of them."""
    work = layer_candidates.KERNELS[candidate.kernel][1](problem, **dict(candidate.tile))
    hidden = 1 - math.exp(-work.resident_warps / ENOUGH_WARPS)  # too few warps leave issue slots empty
    loads = LOAD_LINE * work.global_loads * work.lines_per_load
    stores = STORE_LINE * work.global_stores * work.lines_per_store
    limits = {
        "instructions": work.warps * work.instructions / (INSTRUCTIONS_PER_MS * ISSUE_SHARE * hidden),
        "L1 cache": work.warps * (loads + stores) / LINES_PER_MS,
        "memory": problem.least_bytes / BYTES_PER_MS,
    }
    return Estimate(sum(ms**4 for ms in limits.values()) ** 0.25, limits)


def measure(near, problem, filt):
    """Median milliseconds of each candidate, launched in turns, on as many images as no cache holds."""
    per_image = problem.least_bytes // problem.N
    room = cuda.current_context().get_memory_info().free // 2
    images = max(1, min(problem.N, ceil_div(SAMPLE_BYTES, per_image), room // per_image))
    x = cuda.device_array((images, problem.C, problem.H, problem.W), np.float32)  # its values do not matter
    y = cuda.device_array((images, problem.K, problem.P, problem.Q), np.float32)
    runs = {candidate: layer_candidates.bind(candidate, filt, problem) for candidate in near}
    for run in runs.values():
        run(x, y)  # compiles
    times = {candidate: [] for candidate in near}
    for _ in range(ROUNDS):
        events = {candidate: (cuda.event(), cuda.event()) for candidate in near}
        runs[near[0]](x, y)  # while it runs, the host queues the others
        for candidate, (start, end) in events.items():
            start.record()
            runs[candidate](x, y)
            end.record()
        cuda.synchronize()
        for candidate, (start, end) in events.items():
            times[candidate].append(start.elapsed_time(end))
    return {candidate: statistics.median(samples) for candidate, samples in times.items()}
