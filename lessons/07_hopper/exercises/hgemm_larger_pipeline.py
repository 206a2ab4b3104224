"""Exercise 07.14, tune: at most 500 blocks, and 60% of the floor.

A stage is a tile of A and one of B; a warpgroup multiplies 64 rows. 4096 x 4096 takes 4,096 blocks, and each brings
its tiles from L2, 63 bytes for each thousand multiply-adds. A block may have 232,448 bytes of shared memory, a thread
no stack; a block's threads have equally many registers, in steps of 8. Warps are dealt to four schedulers with 16,384
registers each, so 13 warps have as few as 16 would. K and N are multiples of 8. The kernel, a block for each tile, is
in helpers/one_producer.py. With a GPU: at least 60 percent of the floor's rate on hgemm-4096.
Grade: python -m common grade 07.14
"""

import importlib

pipeline = importlib.import_module("lessons.07_hopper.helpers.one_producer")

REQUIRES = "9.0a"
BLOCK_M, BLOCK_N, BLOCK_K = 64, 64, 64
STAGES = 2
produce = pipeline.asking(BLOCK_M, BLOCK_N, STAGES, 2 * (BLOCK_M + BLOCK_N) * BLOCK_K)
launch = pipeline.launching(BLOCK_M, BLOCK_N, STAGES, produce)
