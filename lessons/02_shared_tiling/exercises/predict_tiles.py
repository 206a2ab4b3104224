"""Exercise 02.4, predict: what tiles take and what they give.

Replace each None by a number or by arithmetic. Counts must be exact, GLOBAL_LOADS to 5%, other figures to 1%,
measured ones to a third.
Grade: python -m common grade 02.4
"""

# gemm_shared_tile on gemm-4096, TILE = 32
BLOCKS = None
SHARED_BYTES = None  # of a block
GLOBAL_LOADS = None  # from global memory, for each multiply-add
WARPS = None  # that fit a multiprocessor: a thread takes 32 registers

# conv2d_shared_tile on ece408-layer1, 16 x 16 outputs, 5 x 5 taps: floats staged for each thread
STAGED = None

# conv2d_unroll_gemm on ece408-layer1: MB of all windows written out
UNROLLED_MB = None

# time of gemm_naive over that of gemm_shared_tile on gemm-4096
SPEED_UP = None
