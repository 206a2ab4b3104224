"""conv2d_layer_dispatch: picks a kernel and a tile for each layer, by a model, a record or a measurement.

Previous step: conv2d_fused_unroll_gemm
New idea: no kernel is best for every layer. A model counts what each candidate issues, moves and wastes, and ranks
    them. On a GPU, prepare() then times those near the top on a part of the batch, once, as cuDNN's benchmark mode
    does, unless choices.json has the times of this layer on this card. Without a GPU the model decides.
Loads per FMA: those of the kernel that is chosen; with --explain behind the next line, the step says which and why.
Run: python -m lessons.05_implicit_gemm conv2d_layer_dispatch
"""

import importlib
import json
import math
import statistics
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numba import config, cuda

from lessons.layer_kernels import SHARED_FLOATS, bind_pairs, bind_sums_minimal, ceil_div, multiple
from lessons.minimal_filtering import products

register_tiled = importlib.import_module("lessons.04_register_blocking.conv2d_register_tiled")
fused = importlib.import_module("lessons.05_implicit_gemm.conv2d_fused_unroll_gemm")

CHOICES = Path(__file__).with_name("choices.json")  # {GPU: {shape: {kernel and tile: milliseconds}}}
NEAR = 1.6  # measured are the candidates that the model puts within this factor of its best
SAMPLE_BYTES = 1 << 30  # the batch they are measured on moves so much: no L2 cache holds it, no host is that slow
WORTHWHILE_MS = 0.2  # a shorter launch is left to the model
ROUNDS = 7
REGISTERS = 65536  # of a multiprocessor
# Fewer products than this, and the roundings of minimal filtering can exceed the bound of a plain sum.
MINIMAL_PRODUCTS = 25
EXACT_PRODUCTS = 65536  # beyond, integers are no longer exact in its sums

# The model's constants: an NVIDIA H200, in units per millisecond
INSTRUCTIONS = 996e6 * 0.86  # that its warps issue, at the share of issue slots that a good kernel reaches
LINES = 249e6  # of 128 bytes that its L1 caches look up
BYTES = 4.17e9
LOAD_LINE, STORE_LINE = 2.0, 5.6  # look-ups that a line read or written is worth, fitted to measured times
ENOUGH_WARPS = 5.2  # resident warps hide latency as 1 - exp(-warps / ENOUGH_WARPS)


class Candidate(NamedTuple):
    """A kernel and its tile, as a tuple of names and values."""

    kernel: str
    tile: tuple

    def __str__(self):
        return " ".join([self.kernel, *(f"{name}={value}" for name, value in self.tile)])


class Work(NamedTuple):
    """What a thread issues (multiply-adds count additions, too), how many threads there are, how many fit."""

    threads: float
    multiply_adds: float
    shared: float  # reads of shared memory, 128 bits each
    loads: float  # reads of global memory,
    load_lines: float  # each of so many lines per warp
    stores: float
    store_lines: float
    rest: float
    warps: float  # resident on a multiprocessor


class Estimate(NamedTuple):
    """The model's milliseconds, in all and for each of its limits, and what explains them."""

    ms: float
    limits: dict
    issued_per_needed: float
    loads_per_multiply_add: float


class Choice(NamedTuple):
    candidate: Candidate
    why: str
    estimates: dict  # by candidate
    measured: dict  # milliseconds by candidate


# --- the candidates ---


def shape(problem):
    """The key of a problem in choices.json."""
    return " ".join(f"{name}={getattr(problem, name)}" for name in "NCHWKRS")


def least_bytes(problem):
    """What must be moved: x once, y once; the filter is small."""
    p = problem
    return 4 * p.N * (p.C * p.H * p.W + p.K * p.P * p.Q)


def candidates(problem):
    """Every kernel and tile that can compute the problem, none twice."""
    C, K, R, S, P, Q = (getattr(problem, name) for name in "CKRSPQ")
    found = []

    def add(kernel, **tile):
        candidate = Candidate(kernel, tuple(tile.items()))
        if candidate not in found:
            found.append(candidate)

    def tiled(**tile):
        kind, constants = register_tiled.plan(C, problem.H, problem.W, K, R, S, **tile)
        if kind != "any":
            add({"one": "hold_window", "many": "hold_sums"}[kind], **constants)
        return kind

    kind = tiled()
    if kind == "one":
        tiled(FILTERS=12)
        window = 2 * R * (S + 1)
        if Q % 2 == 0 and P * Q % 4 == 0 and window <= register_tiled.MAX_WINDOW:
            add("hold_pairs", THREADS=128, BLOCKS=min(8, REGISTERS // (128 * (window + 20))))
    elif kind == "many":
        if ceil_div(P, 13) < ceil_div(P, 10):
            tiled(ROWS=13, BLOCKS=3)
        if K > 8:
            tiled(FILTERS=12, BLOCKS=3)
    if kind == "many" and min(R, P) >= 2 and MINIMAL_PRODUCTS <= C * R * S <= EXACT_PRODUCTS:
        for rows, filters, threads, blocks in ((10, 6, 96, 4), (6, 8, 128, 4 if R <= 5 else 3), (10, 4, 128, 4)):
            filters = min(K, filters)
            if S * products(R) * multiple(filters, 4) <= SHARED_FLOATS:
                add("hold_sums_minimal", ROWS=min(rows, P // 2 * 2), FILTERS=filters, THREADS=threads, BLOCKS=blocks)
    for threads in (64, 128):
        add("fused_unroll_gemm", THREADS=threads)
    return found


def bind(candidate, filt, problem):
    """A function of x and y that computes y with this candidate."""
    tile = dict(candidate.tile)
    if candidate.kernel in ("hold_pairs", "hold_sums_minimal"):
        return {"hold_pairs": bind_pairs, "hold_sums_minimal": bind_sums_minimal}[candidate.kernel](
            filt, problem, **tile
        )
    step = fused if candidate.kernel == "fused_unroll_gemm" else register_tiled
    prepared = step.prepare(filt, problem, **tile)
    return lambda x, y: step.launch(x, prepared, y, **tile)


# --- the model ---


def work(candidate, problem):
    """What a candidate issues for a problem, counted as its kernel is written."""
    N, C, W, K, R, S, P, Q = (getattr(problem, name) for name in "NCWKRSPQ")
    tile, taps = dict(candidate.tile), C * R * S
    if candidate.kernel == "fused_unroll_gemm":
        plan = fused.plan(C, K, R, S, **tile)
        block_m = plan["THREADS_Y"] * plan["THREAD_M"]
        block_n = plan["THREADS"] // plan["THREADS_Y"] * plan["THREAD_N"]
        mine, sums = plan["THREAD_N"] // plan["THREADS_Y"], plan["THREAD_M"] * plan["THREAD_N"]
        rows = taps // S * ceil_div(S, plan["SPAN"])
        flat = P * Q % 4 == 0
        return Work(
            threads=ceil_div(N * P * Q, block_n) * ceil_div(K, block_m) * plan["THREADS"],
            multiply_adds=rows * plan["SPAN"] * sums,
            shared=taps * (plan["THREAD_M"] + plan["THREAD_N"]) / 4,
            loads=taps * mine,
            load_lines=1.5,
            stores=sums / 4 if flat else sums,
            store_lines=4.5 if flat else 1.3,
            rest=120 + rows * (8 + 4 * mine) + 60 * rows / plan["LINES"] + 1.5 * taps + (0 if flat else 2 * sums),
            warps=resident(plan["THREADS"], REGISTERS // (plan["THREADS"] * (sums + 64))),
        )
    warps = resident(tile["THREADS"], tile["BLOCKS"])
    if candidate.kernel == "hold_pairs":
        loads = 2 * R * (S + 1) / (1 if S % 2 == 0 or W % 2 else 2)
        return Work(N * P * Q / 4, 4 * K * R * S, K * ceil_div(R * S, 4), loads, 3, K, 3, 60 + 8 * K, warps)
    if candidate.kernel == "hold_window":
        rows, columns = tile["ROWS"], tile["COLS"]
        wide = 2 if columns == 2 and W % 2 == Q % 2 == 0 else 1
        tiles, rest = ceil_div(P, rows) * ceil_div(Q, columns), 60 + 8 * K / tile["FILTERS"]
        loads, stores = (rows + R - 1) * (columns + S - 1) / wide, K * rows * columns / wide
        shared = K * ceil_div(R * S, 4)
        return Work(N * tiles, K * rows * columns * R * S, shared, loads, 2.5, stores, 2.5, rest, warps)
    rows, filters = tile["ROWS"], tile["FILTERS"]
    threads = N * Q * ceil_div(P, rows) * ceil_div(K, filters)
    loads, stores = C * S * (rows + R - 1), rows * filters
    if candidate.kernel == "hold_sums":
        shared = taps * ceil_div(filters, 4)
        return Work(threads, rows * filters * taps, shared, loads, 2, stores, 2, 100 + 14 * C * S, warps)
    pairs, multiplications = rows / 2, products(R)
    needed = C * S * pairs * multiplications * (filters + 0.85) + 3 * rows * filters
    shared = C * S * multiplications * ceil_div(filters, 4)
    return Work(threads, needed, shared, loads, 2, stores, 2, 100 + 8 * C * S, warps)


def resident(threads, blocks):
    return threads / 32 * max(1, blocks)


def estimate(candidate, problem):
    """The model: each limit alone, then a smooth maximum of the three."""
    w = work(candidate, problem)
    warps = w.threads / 32
    instructions = w.multiply_adds + w.shared + w.loads + w.stores + w.rest
    hidden = 1 - math.exp(-w.warps / ENOUGH_WARPS)
    lines = LOAD_LINE * w.loads * w.load_lines + STORE_LINE * w.stores * w.store_lines
    limits = {
        "instructions": warps * instructions / hidden / INSTRUCTIONS,
        "L1 cache": warps * lines / LINES,
        "memory": least_bytes(problem) / BYTES,
    }
    needed = problem.N * problem.K * problem.P * problem.Q * problem.C * problem.R * problem.S
    return Estimate(
        sum(ms**4 for ms in limits.values()) ** 0.25,
        limits,
        w.threads * w.multiply_adds / needed,
        (w.loads + w.shared) / w.multiply_adds,
    )


# --- the choice ---

_chosen = {}  # for this process, by GPU and shape


def choose(problem, filt=None):
    """The candidate for a problem: recorded or measured on this GPU if `filt` is on one, else the model's first."""
    gpu = gpu_name() if hasattr(filt, "__cuda_array_interface__") and not config.ENABLE_CUDASIM else None
    key = gpu, shape(problem)
    if key not in _chosen:
        estimates = {candidate: estimate(candidate, problem) for candidate in candidates(problem)}
        first = min(estimates, key=lambda candidate: estimates[candidate].ms)
        recorded = records(gpu, problem, estimates)
        if gpu is None or estimates[first].ms < WORTHWHILE_MS:
            reason = "no GPU to measure on" if gpu is None else f"a launch below {WORTHWHILE_MS} ms is not measured"
            _chosen[key] = Choice(first, f"the model's fastest: {reason}", estimates, {})
        elif recorded:
            _chosen[key] = Choice(
                min(recorded, key=recorded.get), f"recorded as fastest on {gpu}", estimates, recorded
            )
        else:
            near = [c for c in estimates if estimates[c].ms <= NEAR * estimates[first].ms]
            measured = measure(near, problem, filt)
            why = f"measured as fastest of {len(near)} on {gpu}"
            _chosen[key] = Choice(min(measured, key=measured.get), why, estimates, measured)
    return _chosen[key]


def measure(near, problem, filt):
    """Median milliseconds of each candidate on as many images as make the caches forget, in turns."""
    per_image = least_bytes(problem) // problem.N
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
    name = cuda.get_current_device().name
    return name.decode() if isinstance(name, bytes) else name


def records(gpu, problem, known):
    """Recorded milliseconds of those candidates that are known, for this GPU and shape."""
    everything = json.loads(CHOICES.read_text(encoding="utf-8"))
    times = everything.get(gpu, {}).get(shape(problem), {})
    return {candidate: times[str(candidate)] for candidate in known if str(candidate) in times}


def explain(problem, filt=None):
    """What is chosen for a problem and why, as text; measured on the GPU that `filt` is on, if it is on one."""
    choice = choose(problem, filt)
    chosen = choice.estimates[choice.candidate]
    limit = max(chosen.limits, key=chosen.limits.get)
    lines = [
        shape(problem),
        f"kernel: {choice.candidate.kernel}",
        f"tile:   {' '.join(f'{name}={value}' for name, value in choice.candidate.tile)}",
        f"reason: {choice.why}",
        f"        its largest limit in the model: {limit}, {chosen.limits[limit]:.3g} ms",
        f"        it issues {chosen.issued_per_needed:.2f} times the definition's multiply-adds, and "
        f"{chosen.loads_per_multiply_add:.3f} loads for each",
        "",
        f"{'candidate':<62} {'model ms':>9} {'instr.':>8} {'L1':>8} {'memory':>8} {'measured':>9}",
    ]
    order = sorted(choice.estimates, key=lambda c: (choice.measured.get(c, math.inf), choice.estimates[c].ms))
    for candidate in order:
        e = choice.estimates[candidate]
        limits = " ".join(f"{ms:8.3g}" for ms in e.limits.values())
        measured = f"{choice.measured[candidate]:9.3g}" if candidate in choice.measured else f"{'':9}"
        lines.append(f"{candidate!s:<62} {e.ms:9.3g} {limits} {measured}".rstrip())
    everything = json.loads(CHOICES.read_text(encoding="utf-8"))
    for gpu, shapes in everything.items():
        times = shapes.get(shape(problem), {})
        if times and not choice.measured:
            best = min(times, key=times.get)
            lines.append(f"recorded on {gpu}: fastest was {best}, {times[best]:.3g} ms")
    return "\n".join(lines)


def prepare(filt, problem):
    """The chosen candidate, its weights prepared. What this takes, measuring included, is the prepare column."""
    return bind(choose(problem, filt).candidate, filt, problem)


def launch(x, chosen, y):
    chosen(x, y)
