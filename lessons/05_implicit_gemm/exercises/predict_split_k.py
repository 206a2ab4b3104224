"""Exercise 05.7, predict: in how many slices should the sum be cut?

A layer with GEMM_M = 3,136, GEMM_N = 512 and GEMM_K = 4,608, in blocks of 128 x 128 outputs and BLOCK_K = 16, on a
GPU with 132 multiprocessors that hold two such blocks each: a wave of 264. Every wave but the last is full. Replace
each None by a number or by arithmetic. Counts must be exact, other figures to 1%.
Grade: python -m common grade 05.7
"""

BLOCKS = None  # in one slice: all of GEMM_K in each block
IDLE_PERCENT = None  # of the 264 places for blocks, percent that are empty then

# SPLIT_K = 4, equal slices
ROUNDS = None  # of the loop over k0 in a block
WAVES = None
PARTIAL_MB = None  # the partial sums of all slices, written once
SECOND_MB = None  # what the second kernel, which adds them up, reads and writes

# full or not, a wave takes as long as its blocks have rounds: the least SPLIT_K from 1 to 10 for which waves times
# rounds is least, if a slice has 288 / SPLIT_K rounds, rounded up
BEST = None

# the same if a round takes 0.25 us, and partial sums are written and read at 4 TB/s (SPLIT_K = 1 has none): the
# SPLIT_K for which the time is least
BEST_WITH_BYTES = None
