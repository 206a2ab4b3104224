"""dgrad_implicit_gemm: which tile for which layer, and what is worked out before a launch."""

import importlib
from functools import lru_cache

from lessons.toolkit.grid import partials_for

long_sums = importlib.import_module("lessons.08_training.helpers.long_sums")
taps = importlib.import_module("lessons.08_training.helpers.meeting_taps")

# What a full GPU reaches with a tile, as a share of the best, and the tile. BLOCKS_PER_SM leaves each thread at most
# 65536 / threads / BLOCKS_PER_SM registers
TILES = (
    (1.00, {"BLOCK_M": 64, "BLOCK_N": 128, "THREAD_M": 16, "THREAD_N": 8, "BLOCKS_PER_SM": 4}),
    (0.99, {"BLOCK_M": 128, "BLOCK_N": 64, "THREAD_M": 16, "THREAD_N": 8, "BLOCKS_PER_SM": 4}),
    (0.85, {"BLOCK_M": 64, "BLOCK_N": 64, "THREAD_M": 8, "THREAD_N": 8, "BLOCKS_PER_SM": 6}),
    (0.50, {"BLOCK_M": 32, "BLOCK_N": 32, "THREAD_M": 8, "THREAD_N": 4, "BLOCKS_PER_SM": 16}),
)
BLOCK_K = 8
GROUP_M = 8  # rows of blocks that run together and share filters in L2
TUNABLES = {
    "BLOCK_M": (32, 64, 128), "BLOCK_N": (32, 64, 128), "BLOCK_K": (8, 16), "THREAD_M": (8, 16), "THREAD_N": (4, 8),
    "BLOCKS_PER_SM": (2, 4, 6, 16), "GROUP_M": (1, 8), "SPLIT_K": long_sums.SPLITS,
}  # fmt: skip


@lru_cache
def plan(GEMM_M, GEMM_N, GEMM_K):
    """The tile for a matrix product of this size."""
    return {**long_sums.choose(TILES, GEMM_M, GEMM_N, GEMM_K), "BLOCK_K": BLOCK_K, "GROUP_M": GROUP_M}


def shipped(problem):
    """The tile that the problem runs with unless another is asked for."""
    return plan(problem.N * problem.D * problem.H * problem.W, problem.C, problem.reduction)


workspace = partials_for(shipped)


def prepare(filt, problem, **tile):
    """The filter as it is: new values need no new preparation. And what depends on the layer's shape alone:

    the table, an entry for each tile of GEMM_K, what the kernel's `pixels` want, the blocks of rows, and the tile.
    """
    tile = {**shipped(problem), **tile}
    table = taps.tap_table(problem, taps.all_taps(problem), tile["BLOCK_K"])
    blocks_m = -(-problem.N * problem.D * problem.H * problem.W // tile["BLOCK_M"])
    tiles_k = problem.T * problem.R * problem.S * -(-problem.K // tile["BLOCK_K"])
    return filt, table, tiles_k, blocks_m, tile
