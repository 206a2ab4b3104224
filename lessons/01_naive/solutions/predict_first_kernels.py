"""Exercise 01.4, predict: threads, bytes and sectors of the first kernels.

Replace each None by a number or by arithmetic, such as 2 * 4096**3 / 1e9. Counts must be exact, other figures to
1%, measured ones to a third. Work them out before you look at a table.
Grade: python -m common grade 01.4
"""

# gemm_naive on gemm-4096, blocks of 32 x 8 threads
BLOCKS = 4096 // 32 * (4096 // 8)
GFLOP = 2 * 4096**3 / 1e9  # one multiply-add is two
LEAST_MB = 3 * 4096**2 * 4 / 1e6  # A and B read once, C written once
ASKED_GB = 2 * 4 * 4096**3 / 1e9  # every a[m, k] and b[k, n] a load of its own

# sectors of 32 bytes that one request of a full warp touches, by the instruction that touches most
SECTORS_COALESCED = 32 * 4 / 32  # gemm_naive
SECTORS_SWAPPED = 32  # gemm_naive_uncoalesced

# conv2d_naive on ece408-layer1: percent of the threads that have no output
IDLE_PERCENT = 100 * (1 - 66 * 66 / (5 * 16 * 5 * 16))

# time of conv2d_naive over that of conv2d_unrolled on ece408-layer2, from the instructions that both take
SPEED_UP = 37.8 / 11.3
