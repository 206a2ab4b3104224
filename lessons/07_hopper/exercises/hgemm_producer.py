"""Exercise 07.6, write: a producer.

Blocks stay, each for tile after tile of C. Four warps multiply, 64 k at a time, using the stages in turn. Write the
thread that feeds them: for each 64 k of each of its block's tiles it waits until the stage is empty, announces the
bytes, and asks for the tile of A (from row m0) and of B (from column n0), whose tile lies A_SIZE values behind. The
first phases of `emptied` have nobody to complete them. K and N are multiples of 8.
Grade: python -m common grade 07.6
"""

import importlib

from numba import cuda

from lessons.toolkit import hopper
from lessons.toolkit.pasted import pasted

pipeline = importlib.import_module("lessons.07_hopper.helpers.one_producer")

REQUIRES = "9.0a"
BLOCK_M, BLOCK_N, BLOCK_K = 64, 64, pipeline.BLOCK_K
STAGES = 2
BLOCKS = 2  # few, so that each has several tiles at small shapes, too
A_SIZE, STAGE = BLOCK_M * BLOCK_K, (BLOCK_M + BLOCK_N) * BLOCK_K
STAGE_BYTES = 2 * STAGE


@pasted
def produce(tiles, filled, emptied, a_map, b_map, tiles_m, tiles_n, K):
    stage, parity = 0, 0
    # >>> your code: 8 lines
    # for tile in range(cuda.blockIdx.x, ...), and with hopper.next_stage at the end
    # <<<


launch = pipeline.launching(BLOCK_M, BLOCK_N, STAGES, produce, BLOCKS)
