"""Every kernel and tile that conv2d_layer_dispatch chooses among."""

import importlib
from typing import NamedTuple

from lessons.toolkit.tiles import REGISTERS, ceil_div, multiple

one_channel = importlib.import_module("lessons.04_register_blocking.conv2d_one_channel")
register_tiled = importlib.import_module("lessons.04_register_blocking.conv2d_register_tiled")
fused = importlib.import_module("lessons.05_implicit_gemm.conv2d_fused_unroll_gemm")
pairs = importlib.import_module("lessons.05_implicit_gemm.helpers.one_channel_pairs")
minimal = importlib.import_module("lessons.05_implicit_gemm.helpers.minimal_filtering")
KERNELS = {
    "one_channel": one_channel,
    "one_channel_pairs": pairs,
    "register_tiled": register_tiled,
    "minimal_filtering": minimal,
    "fused_unroll_gemm": fused,
}

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
    rows, columns = min(problem.P, one_channel.ROWS), min(problem.Q, one_channel.COLS)
    window = (rows + R - 1) * (columns + S - 1)
    filters = problem.K * multiple(R * S, 4)
    return (
        problem.C == 1
        and R * S <= one_channel.MOST_TAPS
        and R <= register_tiled.MOST_R
        and window <= one_channel.MOST_WINDOW
        and filters <= one_channel.STAGED
    )


def bind(candidate, filt, problem):
    """A function of x and y that computes y with this candidate."""
    kernel, tile = KERNELS[candidate.kernel], dict(candidate.tile)
    prepared = kernel.prepare(filt, problem, **tile)
    return lambda x, y: kernel.launch(x, prepared, y, **tile)
