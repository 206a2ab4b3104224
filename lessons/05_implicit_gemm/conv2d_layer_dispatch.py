"""conv2d_layer_dispatch: picks a kernel and a tile for each layer, by a model, a record or a measurement.

Previous step: conv2d_fused_unroll_gemm
New idea: no kernel is best for every layer. A model counts what each candidate issues, moves and wastes, and ranks
    them. On a GPU, prepare() then times those near the top on a part of the batch, once, as cuDNN's benchmark mode
    does, unless choices.json has the times of this layer on this card. Without a GPU the model decides.
Loads per FMA: those of the kernel that is chosen; `python -m lessons.05_implicit_gemm choose PRESET` says which.
Run: python -m lessons.05_implicit_gemm conv2d_layer_dispatch
"""

import importlib
import json
import math
import statistics
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numba import cuda

from lessons.toolkit.tiles import ceil_div

layer_candidates = importlib.import_module("lessons.05_implicit_gemm.helpers.layer_candidates")
# What it chooses among, kernels with tiles; and a function of x and y that computes y with one of them
candidates, bind = layer_candidates.candidates, layer_candidates.bind
CHOICES = Path(__file__).with_name("choices.json")  # {GPU: {shape: {kernel and tile: milliseconds}}}
NEAR = 1.6  # measured are the candidates that the model puts within this factor of its best
SAMPLE_BYTES = 1 << 30  # the batch they are measured on moves so much: no L2 cache holds it, no host is that slow
WORTHWHILE_MS = 0.2  # a shorter launch is left to the model
ROUNDS = 7

# The model's GPU: an NVIDIA H200, 132 multiprocessors at 1.886 GHz. Each clock, one issues 4 instructions of a warp
# and its L1 cache looks one line of 128 bytes up
INSTRUCTIONS_PER_MS = 996e6
LINES_PER_MS = 249e6
BYTES_PER_MS = 4.17e9  # copied within its memory
# Fitted to measured times of these kernels on that GPU
ISSUE_SHARE = 0.86  # of the issue slots, that a kernel with warps enough fills
ENOUGH_WARPS = 5.2  # so many resident warps hide 1 - 1/e of the latency
LOAD_LINE, STORE_LINE = 2.0, 5.6  # look-ups that a line costs, read and written


class Estimate(NamedTuple):
    """The model's milliseconds, in all and for each of its limits."""

    ms: float
    limits: dict


class Choice(NamedTuple):
    candidate: layer_candidates.Candidate
    why: str
    estimates: dict  # by candidate
    measured: dict  # milliseconds by candidate


def estimate(candidate, problem):
    """The model: each limit alone, then all together, which takes a little longer than the longest of them."""
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


_chosen = {}  # for this process, by GPU and shape


def choose(problem, filt=None):
    """The candidate for a problem: recorded or measured on this GPU if `filt` is on one, else the model's first."""
    gpu = gpu_name() if hasattr(filt, "__cuda_array_interface__") else None
    key = gpu, str(problem)
    if key not in _chosen:
        estimates = {candidate: estimate(candidate, problem) for candidate in candidates(problem)}
        first = min(estimates, key=lambda candidate: estimates[candidate].ms)
        times = {}
        if gpu is None:
            why = "the model's fastest: no GPU to measure on"
        elif estimates[first].ms < WORTHWHILE_MS:
            why = f"the model's fastest: a launch below {WORTHWHILE_MS} ms is not measured"
        elif times := records(gpu, problem, estimates):
            why = f"recorded as fastest on {gpu}"
        else:
            near = [c for c in estimates if estimates[c].ms <= NEAR * estimates[first].ms]
            times, why = measure(near, problem, filt), f"measured as fastest of {len(near)} on {gpu}"
        _chosen[key] = Choice(min(times, key=times.get, default=first), why, estimates, times)
    return _chosen[key]


def measure(near, problem, filt):
    """Median milliseconds of each candidate on as many images as make the caches forget, in turns."""
    per_image = problem.least_bytes // problem.N
    room = cuda.current_context().get_memory_info().free // 2
    images = max(1, min(problem.N, ceil_div(SAMPLE_BYTES, per_image), room // per_image))
    x = cuda.device_array((images, problem.C, problem.H, problem.W), np.float32)  # its values do not matter
    y = cuda.device_array((images, problem.K, problem.P, problem.Q), np.float32)
    runs = {candidate: bind(candidate, filt, problem) for candidate in near}
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


def gpu_name():
    return cuda.get_current_device().name


def records(gpu, problem, known):
    """Recorded milliseconds of those candidates that are known, for this GPU and shape."""
    times = json.loads(CHOICES.read_text(encoding="utf-8")).get(gpu, {}).get(str(problem), {})
    return {candidate: times[str(candidate)] for candidate in known if str(candidate) in times}


def explain(problem, filt=None):
    """What is chosen for a problem and why, as text; measured on the GPU that `filt` is on, if it is on one."""
    choice = choose(problem, filt)
    lines = [
        str(problem),
        f"kernel: {choice.candidate.kernel}",
        f"tile:   {' '.join(f'{name}={value}' for name, value in choice.candidate.tile)}",
        f"reason: {choice.why}",
        "",
        f"{'candidate':<62} {'model ms':>9} {'instr.':>8} {'L1':>8} {'memory':>8} {'measured':>9}",
    ]
    for candidate, (ms, limits) in sorted(choice.estimates.items(), key=lambda item: item[1].ms):
        measured = f"{choice.measured[candidate]:9.3g}" if candidate in choice.measured else ""
        figures = " ".join(f"{limit:8.3g}" for limit in limits.values())
        lines.append(f"{candidate!s:<62} {ms:9.3g} {figures} {measured}".rstrip())
    return "\n".join(lines)


def prepare(filt, problem):
    """The chosen candidate, its weights prepared. What this takes, measuring included, is the prepare column."""
    return bind(choose(problem, filt).candidate, filt, problem)


def launch(x, chosen, y):
    chosen(x, y)
