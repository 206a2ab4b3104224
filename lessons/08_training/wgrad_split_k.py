"""wgrad_split_k: the long sum is cut into parts, as many as fill the GPU; partial sums are added in a fixed order.

Previous step: wgrad_implicit_gemm
New idea: SPLIT_K blocks share a tile of dfilt, each with its part of the outputs, and write partial gradients to a
    workspace; a second kernel adds them up. With many blocks a tile may be as large as registers allow.
Loads per FMA: (THREAD_M + THREAD_N) / (THREAD_M * THREAD_N) = 0.19 shared values in 0.05 instructions;
    1 / BLOCK_M + 1 / BLOCK_N = 0.016 global values, and SPLIT_K times dfilt written and read.
Run: python -m lessons.08_training wgrad_split_k
"""

import importlib
from functools import lru_cache

from lessons.toolkit.grid import partial_outputs

implicit_gemm = importlib.import_module("lessons.08_training.wgrad_implicit_gemm")
long_sums = importlib.import_module("lessons.08_training.helpers.long_sums")

# What a full GPU reaches with a tile, as a share of the best, and the tile
TILES = (
    (1.00, {"BLOCK_M": 128, "BLOCK_N": 128, "THREAD_M": 16, "THREAD_N": 8, "BLOCKS_PER_SM": 2}),
    (0.99, {"BLOCK_M": 64, "BLOCK_N": 128, "THREAD_M": 16, "THREAD_N": 8, "BLOCKS_PER_SM": 4}),
    (0.95, {"BLOCK_M": 64, "BLOCK_N": 64, "THREAD_M": 16, "THREAD_N": 8, "BLOCKS_PER_SM": 8}),
    (0.86, {"BLOCK_M": 64, "BLOCK_N": 64, "THREAD_M": 8, "THREAD_N": 8, "BLOCKS_PER_SM": 6}),
    (0.50, {"BLOCK_M": 32, "BLOCK_N": 32, "THREAD_M": 8, "THREAD_N": 4, "BLOCKS_PER_SM": 16}),
)
BLOCK_K = 8
TUNABLES = {
    "BLOCK_M": (32, 64, 128), "BLOCK_N": (32, 64, 128), "BLOCK_K": (8, 16), "THREAD_M": (8, 16), "THREAD_N": (4, 8),
    "BLOCKS_PER_SM": (2, 4, 6, 8, 16), "SPLIT_K": long_sums.SPLITS,
}  # fmt: skip


@lru_cache
def plan(GEMM_M, GEMM_N, GEMM_K):
    """The tile for a matrix product of this size, and into how many parts its sum is cut."""
    return {**long_sums.choose(TILES, GEMM_M, GEMM_N, GEMM_K), "BLOCK_K": BLOCK_K}


def shipped(problem):
    """The tile that the problem runs with unless another is asked for."""
    return plan(problem.K, problem.T * problem.R * problem.S * problem.C, problem.reduction)


def workspace(problem, **tile):
    """The table of outputs, and partial gradients, where SPLIT_K is more than 1."""
    tile = {**shipped(problem), **tile}
    beyond = (tile["SPLIT_K"] + 3) * tile["BLOCK_K"]  # the last block asks for two tiles after its last
    return implicit_gemm.output_table(problem, beyond), partial_outputs(problem, tile["SPLIT_K"])


def launch(x, dy, dfilt, geometry, workspace, **tile):
    table, partials = workspace
    K, GEMM_N = dfilt.shape[0], dfilt.size // dfilt.shape[0]
    tile = {**plan(K, GEMM_N, dy.size // K), **tile}
    splits = tile.pop("SPLIT_K")
    flat = dfilt.reshape(dfilt.size)
    sums = partials if splits > 1 else flat
    implicit_gemm.multiply(x, dy, table, sums, dfilt.shape, geometry, splits, **tile)
    if splits > 1:
        long_sums.add_up(partials, flat, splits)
