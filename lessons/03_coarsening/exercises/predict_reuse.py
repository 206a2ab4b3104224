"""Exercise 03.3, predict: what reuse in registers saves.

Replace each None by a number or by arithmetic. Counts must be exact, other figures to 1%, measured ones to a third.
Grade: python -m common grade 03.3
"""

# gemm_coarsened, TILE = 32, WPT = 8
SHARED_LOADS = None  # instructions that read shared memory, for each multiply-add
THREADS = None  # in a block
BLOCKS = None  # on gemm-4096
WARPS = None  # that fit a multiprocessor: a thread takes 66 registers, which are given in steps of 8

# gemm_wide_loads, TILE = 32, WPT = 8: instructions that read shared memory, for each multiply-add
WIDE_LOADS = None

# time of gemm_shared_tile over that of gemm_coarsened on gemm-4096, from the reads promised for each multiply-add
SPEED_UP = None
