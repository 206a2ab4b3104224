"""Exercise 05.9, tune: at most 0.06 reads of shared memory for each multiply-add.

Choose a tile for conv3d_implicit_gemm_precomputed with at most so many load instructions in its compiled loop. Its
arrays must stay in registers, and a multiprocessor must have room for 8 warps. A warp computes 4 * THREAD_M x
8 * THREAD_N outputs, and a block a multiple of that.
With a GPU: at least 60 percent of the floor's rate on c3d-conv3a.
Grade: python -m common grade 05.9
"""

import importlib

step = importlib.import_module("lessons.05_implicit_gemm.conv3d_implicit_gemm_precomputed")

BLOCK_M, BLOCK_N = 64, 64  # a block computes BLOCK_M outputs of BLOCK_N filters
THREAD_M, THREAD_N = 8, 8  # a thread computes THREAD_M outputs of THREAD_N filters
BLOCKS_PER_SM = 6  # leaves each thread at most 65536 / threads / BLOCKS_PER_SM registers
TILE = {
    "BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "THREAD_M": THREAD_M, "THREAD_N": THREAD_N,
    "BLOCKS_PER_SM": BLOCKS_PER_SM, "SPLIT_K": 1,
}  # fmt: skip


def prepare(filt, problem):
    return step.prepare(filt, problem, **TILE)


def launch(x, prepared, y, geometry):
    step.launch(x, prepared, y, geometry, **TILE)
