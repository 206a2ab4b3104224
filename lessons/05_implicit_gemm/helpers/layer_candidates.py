"""Every kernel and tile that conv2d_layer_dispatch chooses among, and what each gives the GPU to do."""

import importlib
from typing import NamedTuple

from lessons.toolkit.tiles import REGISTERS, ceil_div, multiple

one_channel = importlib.import_module("lessons.04_register_blocking.conv2d_one_channel")
register_tiled = importlib.import_module("lessons.04_register_blocking.conv2d_register_tiled")
fused = importlib.import_module("lessons.05_implicit_gemm.conv2d_fused_unroll_gemm")
pairs = importlib.import_module("lessons.05_implicit_gemm.helpers.one_channel_pairs")
minimal = importlib.import_module("lessons.05_implicit_gemm.helpers.minimal_filtering")

# Fewer products than this, and the roundings of minimal filtering can exceed the bound of a plain sum.
MINIMAL_PRODUCTS = 25
EXACT_PRODUCTS = 65536  # beyond, integers are no longer exact in its sums


class Candidate(NamedTuple):
    """A kernel and its tile, as a tuple of names and values."""

    kernel: str
    tile: tuple

    def __str__(self):
        return " ".join([self.kernel, *(f"{name}={value}" for name, value in self.tile)])


def candidates(problem):
    """Every kernel and tile that can compute the problem, none twice."""
    C, K, R, S, P, Q = (getattr(problem, name) for name in "CKRSPQ")
    shape = C, problem.H, problem.W, K, R, S
    found = []

    def add(kernel, **tile):
        candidate = Candidate(kernel, tuple(tile.items()))
        if candidate not in found:
            found.append(candidate)

    if window_fits(problem):
        for filters in (6, 12):
            add("one_channel", **one_channel.plan(*shape, FILTERS=filters))
        window = 2 * R * (S + 1)  # of two pairs
        if Q % 2 == 0 and P * Q % 4 == 0 and window <= one_channel.MOST_WINDOW:
            add("one_channel_pairs", THREADS=128, BLOCKS=min(8, REGISTERS // (128 * (window + 20))))
    elif R <= register_tiled.MOST_R and R * S <= one_channel.MOST_TAPS:
        add("register_tiled", **register_tiled.plan(*shape))
        if ceil_div(P, 13) < ceil_div(P, 10):
            add("register_tiled", **register_tiled.plan(*shape, ROWS=13, BLOCKS=3))
        if K > 8:
            add("register_tiled", **register_tiled.plan(*shape, FILTERS=12, BLOCKS=3))
        if min(R, P) >= 2 and MINIMAL_PRODUCTS <= C * R * S <= EXACT_PRODUCTS:
            for rows, filters, threads, blocks in ((10, 6, 96, 4), (6, 8, 128, 4 if R <= 5 else 3), (10, 4, 128, 4)):
                tile = {"ROWS": min(rows, P // 2 * 2), "FILTERS": min(K, filters)}
                if S * minimal.products(R) * multiple(tile["FILTERS"], 4) <= minimal.STAGED:
                    add("minimal_filtering", **tile, THREADS=threads, BLOCKS=blocks)
    for threads in (64, 128):
        add("fused_unroll_gemm", THREADS=threads)
    return found


def window_fits(problem):
    """Is there one channel, and do a window and all filters fit in registers and in shared memory?"""
    R, S = problem.R, problem.S
    whole = one_channel.part(R, S, min(problem.P, one_channel.ROWS), min(problem.Q, one_channel.COLS)) == (R, S)
    filters = problem.K * multiple(R * S, 4)
    return problem.C == 1 and R <= register_tiled.MOST_R and whole and filters <= one_channel.STAGED


def bind(candidate, filt, problem):
    """A function of x and y that computes y with this candidate."""
    (kernel, _), tile = KERNELS[candidate.kernel], dict(candidate.tile)
    prepared = kernel.prepare(filt, problem, **tile)
    return lambda x, y: kernel.launch(x, prepared, y, **tile)


class Work(NamedTuple):
    """What a candidate gives the GPU to do. Counts are those of one thread: each is one instruction of its warp."""

    threads: int
    resident_warps: float  # on a multiprocessor at a time
    multiply_adds: float  # additions count, too
    shared_loads: float  # of 128 bits
    global_loads: float
    lines_per_load: float  # of 128 bytes, that one load of a warp touches
    global_stores: float
    lines_per_store: float
    other: float  # addresses, counters, barriers: about as many as `python -m common inspect` counts

    @property
    def instructions(self):
        return self.multiply_adds + self.shared_loads + self.global_loads + self.global_stores + self.other

    @property
    def warps(self):
        return self.threads / 32


def work_of_one_channel(problem, ROWS, COLS, FILTERS, THREADS, BLOCKS):
    N, W, K, R, S, P, Q = (getattr(problem, name) for name in "NWKRSPQ")
    wide = 2 if COLS == 2 and W % 2 == Q % 2 == 0 else 1  # values of a load or store
    return Work(
        threads=N * ceil_div(P, ROWS) * ceil_div(Q, COLS), resident_warps=THREADS / 32 * BLOCKS,
        multiply_adds=K * ROWS * COLS * R * S, shared_loads=K * ceil_div(R * S, 4),
        global_loads=(ROWS + R - 1) * (COLS + S - 1) / wide, lines_per_load=2.5,
        global_stores=K * ROWS * COLS / wide, lines_per_store=2.5, other=60 + 8 * K / FILTERS,
    )  # fmt: skip


def work_of_pairs(problem, THREADS, BLOCKS):
    N, W, K, R, S, P, Q = (getattr(problem, name) for name in "NWKRSPQ")
    wide = 1 if S % 2 == 0 or W % 2 else 2  # values of a load
    return work_of_one_channel(problem, 2, 2, 1, THREADS, BLOCKS)._replace(
        threads=N * P * Q / 4, global_loads=2 * R * (S + 1) / wide, lines_per_load=3, global_stores=K,
        lines_per_store=3,
    )  # fmt: skip


def work_of_register_tiled(problem, ROWS, FILTERS, THREADS, BLOCKS):
    C, R, S = problem.C, problem.R, problem.S
    return Work(
        threads=problem.N * problem.Q * ceil_div(problem.P, ROWS) * ceil_div(problem.K, FILTERS),
        resident_warps=THREADS / 32 * BLOCKS, multiply_adds=ROWS * FILTERS * C * R * S,
        shared_loads=C * R * S * ceil_div(FILTERS, 4), global_loads=C * S * (ROWS + R - 1), lines_per_load=2,
        global_stores=ROWS * FILTERS, lines_per_store=2, other=100 + 14 * C * S,
    )  # fmt: skip


def work_of_minimal_filtering(problem, ROWS, FILTERS, THREADS, BLOCKS):
    C, S, products = problem.C, problem.S, minimal.products(problem.R)
    before, after = 0.85, 3 * ROWS * FILTERS  # additions: before each product that serves all filters; at the end
    return work_of_register_tiled(problem, ROWS, FILTERS, THREADS, BLOCKS)._replace(
        multiply_adds=C * S * ROWS / 2 * products * (FILTERS + before) + after,
        shared_loads=C * S * products * ceil_div(FILTERS, 4),
        other=100 + 8 * C * S,
    )


def work_of_fused(problem, THREADS):
    C, K, R, S, pixels = problem.C, problem.K, problem.R, problem.S, problem.P * problem.Q
    plan = fused.plan(C, K, R, S, THREADS=THREADS)
    THREAD_M, THREAD_N, THREADS_Y = plan["THREAD_M"], plan["THREAD_N"], plan["THREADS_Y"]
    sums, unrolled = THREAD_M * THREAD_N, THREAD_N // THREADS_Y  # of a thread: outputs, and windows it unrolls
    blocks = ceil_div(problem.N * pixels, THREADS // THREADS_Y * THREAD_N) * ceil_div(K, THREADS_Y * THREAD_M)
    lines = C * R * ceil_div(S, plan["SPAN"])  # pieces of a filter's rows
    direct = pixels % 4 == 0  # stored as 128-bit words, not through shared memory
    copying, tiles = lines * (8 + 4 * unrolled), lines / plan["LINES"]
    return Work(
        threads=blocks * THREADS, resident_warps=THREADS / 32 * max(1, REGISTERS // (THREADS * (sums + 64))),
        multiply_adds=lines * plan["SPAN"] * sums, shared_loads=C * R * S * (THREAD_M + THREAD_N) / 4,
        global_loads=C * R * S * unrolled, lines_per_load=1.5, global_stores=sums / 4 if direct else sums,
        lines_per_store=4.5 if direct else 1.3,
        other=120 + copying + 60 * tiles + 1.5 * C * R * S + (0 if direct else 2 * sums),
    )  # fmt: skip


# By name, a kernel and what it gives the GPU to do: a function of the problem and the tile
KERNELS = {
    "one_channel": (one_channel, work_of_one_channel),
    "one_channel_pairs": (pairs, work_of_pairs),
    "register_tiled": (register_tiled, work_of_register_tiled),
    "minimal_filtering": (minimal, work_of_minimal_filtering),
    "fused_unroll_gemm": (fused, work_of_fused),
}
