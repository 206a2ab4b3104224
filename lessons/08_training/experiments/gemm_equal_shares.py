"""gemm_equal_shares: the k steps of all tiles in one row, cut into equal shares, one for each place on the GPU.

Variant of: gemm_double_buffered
New idea: a block no longer owns a tile. The steps of all tiles, BLOCK_K each, are numbered, and as many blocks as the
    GPU has places take equal shares. A share is the end of a tile, perhaps whole ones, and the beginning of another:
    segments. Their sums go to memory of their own, at tile + block: the next segment is of the next of either. A
    second kernel adds those of a tile, in the order of the blocks. (Osama et al., "Stream-K", 2023.)
Loads per FMA: as in gemm_double_buffered; and a tile of sums written and read for each segment.
Run: python -m lessons.08_training gemm_equal_shares
"""

import importlib

import numpy as np
from numba import cuda, float32, int64

from lessons.toolkit.grid import SUM_THREADS, jit, multiprocessors
from lessons.toolkit.memory import aligned, shared_array
from lessons.toolkit.tiles import ceil_div
from lessons.toolkit.unroll import inlined, unroll, unrolled

step = importlib.import_module("lessons.04_register_blocking.gemm_double_buffered")
register_tiles = importlib.import_module("lessons.08_training.helpers.register_tiles")
BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N = step.BLOCK_M, step.BLOCK_N, step.BLOCK_K, step.THREAD_M, step.THREAD_N
A_STAGE, B_STAGE, A_SIZE, BOTH = step.A_STAGE, step.B_STAGE, step.A_SIZE, step.A_BOTH + step.B_BOTH
TILE = BLOCK_M * BLOCK_N  # sums
of = register_tiles.register_tiles(BLOCK_M, BLOCK_N, THREAD_M, THREAD_N, step.BLOCKS_PER_SM)
THREADS, A_FRAG, B_FRAG, ACC, first_of_thread, _, _, row_of, store_row = of


@inlined
def ask(source, here, tiles, start):
    """The next step's pair of tiles to registers: `here` is where that begins, m0, n0 and k0. Then on by a step."""
    a, b, a_stage, b_stage, wide = source
    step.load_tiles(a, b, here[0], here[1], here[2], a_stage, b_stage, wide)
    here[2] += BLOCK_K
    if here[2] >= b.shape[0]:
        here[1], here[2] = here[1] + BLOCK_N, 0
        if here[1] >= b.shape[1]:
            here[0], here[1] = here[0] + BLOCK_M, 0


@inlined
def arrive(source, here, tiles, start):
    step.store_tiles(source[2], source[3], tiles, start, tiles, start + A_SIZE)


begin, multiply = register_tiles.double_buffered(of, step.A_STRIDE, step.B_STRIDE, BLOCK_K, ask, arrive)


@jit(THREADS, step.BLOCKS_PER_SM)
@unroll
def gemm_equal_shares(a, b, sums, all_steps, steps, blocks_n, wide):
    tiles, here, acc = shared_array(BOTH), cuda.local.array(3, int64), cuda.local.array(ACC, float32)
    a_stage, b_stage = cuda.local.array(A_STAGE, float32), cuda.local.array(B_STAGE, float32)
    a_frag, b_frag = cuda.local.array(A_FRAG, float32), cuda.local.array(B_FRAG, float32)

    # locate: the block's share of all steps
    at, end = cuda.blockIdx.x * all_steps // cuda.gridDim.x, (cuda.blockIdx.x + 1) * all_steps // cuda.gridDim.x
    here[0], here[1] = at // steps // blocks_n * BLOCK_M, at // steps % blocks_n * BLOCK_N

    # stage: the first pair of tiles
    here[2], start, source = at % steps * BLOCK_K, int64(0), (a, b, a_stage, b_stage, wide)
    begin(source, here, tiles, a_frag, b_frag)
    while at < end:
        # multiply: the steps of one tile; beside the last one travels the first pair of the next tile
        tile, last = at // steps, min(end, (at // steps + 1) * steps)
        at, start = last, multiply(last - at, start, source, here, tiles, a_frag, b_frag, acc)

        # store: the segment's sums, a whole tile
        thread_m, thread_n = first_of_thread()
        for i in unrolled(THREAD_M):
            to = (tile + cuda.blockIdx.x) * TILE + (thread_m + row_of(i)) * BLOCK_N + thread_n
            store_row(sums, to, True, 0, BLOCK_N, acc, int64(i), True)


@cuda.jit
def add_segments(sums, c, tiles, steps, blocks):
    """c = the sums of all segments. Step s is in the share of block ((s + 1) * blocks - 1) // (tiles * steps)."""
    i, N = cuda.grid(1), c.shape[1]
    if i < c.size:
        m, n = i // N, i % N
        tile = m // BLOCK_M * ((N + BLOCK_N - 1) // BLOCK_N) + n // BLOCK_N
        first, last = (tile * steps + 1) * blocks - 1, (tile + 1) * steps * blocks - 1
        total = float32(0.0)
        for block in range(first // (tiles * steps), last // (tiles * steps) + 1):
            total += sums[(tile + block) * TILE + m % BLOCK_M * BLOCK_N + n % BLOCK_N]
        c[m, n] = total


def workspace(problem):
    """A tile of sums for each segment; blocks: as many as fit on the GPU, but no more than there are steps."""
    tiles = ceil_div(problem.M, BLOCK_M) * ceil_div(problem.N, BLOCK_N)
    blocks = min(tiles * ceil_div(problem.K, BLOCK_K), step.BLOCKS_PER_SM * multiprocessors())
    return cuda.device_array((tiles + blocks - 1) * TILE, np.float32)


def launch(a, b, c, sums):
    (M, N), steps = c.shape, ceil_div(a.shape[1], BLOCK_K)
    blocks_n, tiles = ceil_div(N, BLOCK_N), ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N)
    blocks = sums.size // TILE - tiles + 1
    gemm_equal_shares[blocks, THREADS](a, b, sums, tiles * steps, steps, blocks_n, aligned(a, b))
    add_segments[ceil_div(c.size, SUM_THREADS), SUM_THREADS](sums, c, tiles, steps, blocks)
