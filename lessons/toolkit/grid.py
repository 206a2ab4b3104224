"""How a kernel fills the GPU: launch bounds, grids, which tile for which matrices, blocks that share one (split K).

A last wave of few blocks takes nearly as long as a full one. Then SPLIT_K blocks may share a tile of the output, each
with its part of gemm_k: they write partial outputs, which a second kernel adds up, always in the same order.
"""

from math import prod

import numpy as np
from numba import cuda, float32

MAX_BLOCKS_Y = 65535  # blocks that a grid holds at most along y, and along z; along x 2**31 - 1
BUSY_WARPS = 8  # warps that keep a multiprocessor busy
SPLITS = (1, 2, 3, 4, 6, 8, 16)
# Multiply-adds that a multiprocessor could do while the GPU moves one byte of partial output, written and read: 60
# TFLOP/s and 4 TB/s, for 132 multiprocessors
FMA_PER_BYTE = 0.06
LEAST_PART = 256  # of gemm_k: less does not pay for a block's start
SECOND_KERNEL = 700_000  # multiply-adds of a multiprocessor in 3 microseconds
SUM_THREADS = 256


def jit(threads, blocks=1, cluster=1):
    """cuda.jit that gives a thread as many registers as `blocks` resident blocks of `threads` leave it.

    The kernel runs in clusters of `cluster` blocks along x, which reach each other's shared memory; its grid counts
    blocks, a multiple of `cluster`.
    """
    return cuda.jit(launch_bounds=(threads, blocks) if cluster == 1 else (threads, blocks, cluster))


def row_slices(M, N, block_m, block_n):
    """For an M x N matrix in blocks of block_m x block_n: slices of its rows, and for each its grid (x, y) of blocks.

    One slice, but where the grid would be more than 65,535 blocks high.
    """
    most = MAX_BLOCKS_Y * block_m
    for m0 in range(0, M, most):
        rows = slice(m0, min(m0 + most, M))
        yield rows, (-(-N // block_n), -(-(rows.stop - m0) // block_m))


def multiprocessors():
    """Of this GPU; without one, of an H200."""
    try:
        return cuda.get_current_device().MULTIPROCESSOR_COUNT
    except cuda.CudaSupportError:  # compiling for another machine
        return 132


def choose(tiles, GEMM_M, GEMM_N, GEMM_K):
    """The tile with the least estimated time, and its SPLIT_K; `tiles` maps what a full GPU reaches to constants."""

    def cost(choice):
        rate, tile, splits = choice
        size = tile["BLOCK_M"] * tile["BLOCK_N"]
        warps = size // (tile["THREAD_M"] * tile["THREAD_N"] * 32)
        blocks = -(-GEMM_M // tile["BLOCK_M"]) * -(-GEMM_N // tile["BLOCK_N"]) * splits
        sms = multiprocessors()
        waves, rest = divmod(blocks, tile["BLOCKS_PER_SM"] * sms)
        resident = [tile["BLOCKS_PER_SM"]] * min(waves, 1) + [-(-rest // sms)] * (rest > 0)
        times = [n / min(1, n * warps / BUSY_WARPS) for n in resident]
        in_waves = times[0] * max(waves, 1) + sum(times[1:])
        adding = SECOND_KERNEL + 8 * splits * GEMM_M * GEMM_N * FMA_PER_BYTE if splits > 1 else 0
        return in_waves * size * -(-GEMM_K // splits) / rate + adding

    choices = [
        (rate, tile, splits)
        for rate, tile in tiles
        for splits in SPLITS
        if splits == 1 or splits * LEAST_PART <= GEMM_K
    ]
    _, tile, splits = min(choices, key=cost)
    return {**tile, "SPLIT_K": splits}


def partial_outputs(problem, splits):
    """Device memory for as many outputs, or none if there is nothing to add up."""
    return cuda.device_array(splits * prod(problem.output_shape), np.float32) if splits > 1 else None


def partials_for(shipped):
    """The `workspace` of a step: partial outputs, where its tile, or what is asked for instead, has a SPLIT_K."""

    def workspace(problem, **tile):
        return partial_outputs(problem, {**shipped(problem), **tile}["SPLIT_K"])

    return workspace


@cuda.jit
def sum_partials(partials, y):
    """y[i] = sum of partials[split, i] over split."""
    i = cuda.blockIdx.x * SUM_THREADS + cuda.threadIdx.x
    if i < y.size:
        total = float32(0.0)
        for at in range(i, partials.size, y.size):
            total += partials[at]
        y[i] = total


def add_up(partials, y):
    """Add the partial outputs, one after another in a flat array, into y."""
    sum_partials[-(-y.size // SUM_THREADS), SUM_THREADS](partials, y)
