"""Exercise 02.4, predict: what tiles take and what they give.

Replace each None by a number or by arithmetic. Counts must be exact, GLOBAL_LOADS to 5%, other figures to 1%,
measured ones to a third.
Grade: python -m common grade 02.4
"""

# gemm_shared_tile on gemm-4096, TILE = 32
BLOCKS = (4096 // 32) ** 2
SHARED_BYTES = 2 * 32 * 32 * 4  # of a block
GLOBAL_LOADS = 2 / 32  # from global memory, for each multiply-add
WARPS = 65536 // (32 * 1024) * 32  # that fit a multiprocessor: a thread takes 32 registers

# conv2d_shared_tile on ece408-layer1, 16 x 16 outputs, 5 x 5 taps: floats staged for each thread
STAGED = (16 + 5 - 1) ** 2 / 16**2

# conv2d_unroll_gemm on ece408-layer1: MB of all windows written out
UNROLLED_MB = 10000 * 25 * 66 * 66 * 4 / 1e6

# time of gemm_naive over that of gemm_shared_tile on gemm-4096
SPEED_UP = 104 / 17
