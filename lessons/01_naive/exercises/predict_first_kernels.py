"""Exercise 01.3, predict: blocks, idle threads and bytes at a shape that divides by nothing.

Replace each None by a number or by arithmetic, such as 2 * 4096**3 / 1e9. Counts must be exact, other figures to 1%,
what was measured to a fifth.
Grade: python -m common grade 01.3
"""

# gemm_naive for M = 1001, N = 700, K = 300, blocks of 32 x 8 threads
BLOCKS = None
IDLE_PERCENT = None  # threads without an element of C, of all threads
IDLE_WARPS = None  # warps in which no thread has one
LEAST_MB = None  # A and B read once, C written once
FLOP_PER_BYTE = None  # a multiply-add is two FLOP; the bytes of LEAST_MB
ASKED_MB = None  # every a[m, k] and b[k, n] a load of its own

# the floor of a product with M = N = 2048 and K = 16, in ms, on a card that multiplies 60,000 GFLOP/s and copies
# 4,000 GB/s
FLOOR_MS = None

# on that card, for M = N = 512: the largest K for which it is the bytes, not the multiply-adds, that set the floor
K_OF_BYTES = None

# the time of gemm_naive for M = N = K = 2048 in ms, as the H200 of the page took it: measured
NAIVE_2048_MS = None
