"""Exercise 02.4, predict: what tiles of another size take and give.

Replace each None by a number or by arithmetic. Counts must be exact, other figures to 1%, what was measured to a
fifth. A multiprocessor has 65,536 registers and 233,472 bytes of shared memory (1,024 more than it asks for go with
each block), and holds 64 warps.
Grade: python -m common grade 02.4
"""

# gemm_shared_tile with TILE = 24, for M = N = 4096 and K = 100
BLOCKS = None
SHARED_BYTES = None  # of a block
GLOBAL_LOADS = None  # for each multiply-add that a thread does, in a round whose tiles lie inside
ROUNDS = None  # of the loop over k0
# multiply-adds that C does not need, of all that are done
WASTED_PERCENT = None

# warps that fit a multiprocessor
WARPS_A = None  # blocks of 1,024 threads, 40 registers each
WARPS_B = None  # blocks of 256 threads, 40 registers each
WARPS_C = None  # blocks of 256 threads, 32 registers each, and 65,536 bytes of shared memory

# a convolution with 7 x 7 taps, one output for each thread: how many floats of its patch does a block stage for each
# thread, if its tile has 8 x 64 outputs, and if it has 16 x 32?
STAGED_8_64 = None
STAGED_16_32 = None

# the time of gemm_shared_tile as shipped for M = N = K = 2048 in ms, as the H200 of the page took it: measured
TILED_2048_MS = None
