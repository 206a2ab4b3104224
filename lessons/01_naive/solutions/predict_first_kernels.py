"""Exercise 01.3, predict: blocks, idle threads and bytes at a shape that divides by nothing.

Replace each None by a number or by arithmetic, such as 2 * 4096**3 / 1e9. Counts must be exact, other figures to 1%,
what was measured to a fifth.
Grade: python -m common grade 01.3
"""

# gemm_naive for M = 1001, N = 700, K = 300, blocks of 32 x 8 threads
BLOCKS = (700 + 31) // 32 * ((1001 + 7) // 8)
IDLE_PERCENT = 100 * (1 - 700 * 1001 / (BLOCKS * 32 * 8))  # threads without an element of C, of all threads
IDLE_WARPS = 7 * 22  # warps in which no thread has one
LEAST_MB = 4 * (1001 * 300 + 300 * 700 + 1001 * 700) / 1e6  # A and B read once, C written once
FLOP_PER_BYTE = 2 * 1001 * 700 * 300 / (LEAST_MB * 1e6)  # a multiply-add is two FLOP; the bytes of LEAST_MB
ASKED_MB = 4 * 2 * 1001 * 700 * 300 / 1e6  # every a[m, k] and b[k, n] a load of its own

# the floor of a product with M = N = 2048 and K = 16, in ms, on a card that multiplies 60,000 GFLOP/s and copies
# 4,000 GB/s
FLOOR_MS = 4 * (2 * 2048 * 16 + 2048**2) / 4000e9 * 1e3

# on that card, for M = N = 512: the largest K for which it is the bytes, not the multiply-adds, that set the floor
K_OF_BYTES = 33

# the time of gemm_naive for M = N = K = 2048 in ms, as the H200 of the page took it: measured
NAIVE_2048_MS = 104 / 8
