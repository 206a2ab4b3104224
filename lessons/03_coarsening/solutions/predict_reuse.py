"""Exercise 03.3, predict: what reuse in registers saves.

Replace each None by a number or by arithmetic. Counts must be exact, other figures to 1%, measured ones to a third.
Grade: python -m common grade 03.3
"""

# gemm_coarsened, TILE = 32, WPT = 8
SHARED_LOADS = (8 + 1) / 8  # instructions that read shared memory, for each multiply-add
THREADS = 32 * 32 // 8  # in a block
BLOCKS = (4096 // 32) ** 2  # on gemm-4096
WARPS = (
    65536 // (72 * 128) * 128 // 32
)  # that fit a multiprocessor: a thread takes 66 registers, which are given in steps of 8

# gemm_wide_loads, TILE = 32, WPT = 8: instructions that read shared memory, for each multiply-add
WIDE_LOADS = (2 + 4) / (4 * 8)

# time of gemm_shared_tile over that of gemm_coarsened on gemm-4096, from the reads promised for each multiply-add
SPEED_UP = 2 / ((8 + 1) / 8)
