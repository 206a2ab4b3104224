"""Exercise 08.2, predict: three products of one layer.

A layer of N=8 C=64 H=W=30 K=96 R=S=3 with a stride of 2 and no padding, D = T = 1. Replace each None by a number
or by arithmetic. Whole numbers must be exact, other figures to 1%.
Grade: python -m common grade 08.2
"""

# the output: P rows of Q = P
P = (30 - 3) // 2 + 1

# forward
FORWARD_GEMM_M = 8 * 14 * 14
FORWARD_GEMM_N = 96
FORWARD_GEMM_K = 9 * 64

# the gradient of the input
DGRAD_GEMM_M = 8 * 30 * 30
DGRAD_GEMM_N = 64
DGRAD_GEMM_K = 9 * 96

# the gradient of the filter
WGRAD_GEMM_M = 96
WGRAD_GEMM_N = 9 * 64
WGRAD_GEMM_K = 8 * 14 * 14

# GEMM_M * GEMM_N * GEMM_K of the two gradients, over that of the forward product
DGRAD_TIMES = 30 * 30 / (14 * 14)
WGRAD_TIMES = 1

# blocks of 64 x 64 outputs
FORWARD_BLOCKS = 25 * 2
WGRAD_BLOCKS = 2 * 9
DGRAD_BLOCKS = 113

# how many floats apart lie filt[k, t, r, s, c] and filt[k + 1, t, r, s, c];
# and dy[n, o, p, q, k] and dy[n, o, p, q + 1, k]
FROM_K_TO_K = 9 * 64
FROM_Q_TO_Q = 96

# in wgrad, how far apart in x are the elements of one column of windows for outputs q and q + 1
IN_X = 2 * 64
