"""Exercise 08.2, predict: three products of one layer.

A layer of N=8 C=64 H=W=30 K=96 R=S=3 with a stride of 2 and no padding, D = T = 1. Replace each None by a number
or by arithmetic. Whole numbers must be exact, other figures to 1%.
Grade: python -m common grade 08.2
"""

# the output: P rows of Q = P
P = None

# the gradient of the input
DGRAD_GEMM_M = None
DGRAD_GEMM_N = None
DGRAD_GEMM_K = None

# the gradient of the filter
WGRAD_GEMM_M = None
WGRAD_GEMM_N = None
WGRAD_GEMM_K = None

# GEMM_M * GEMM_N * GEMM_K of the two gradients, over that of the forward product
DGRAD_TIMES = None
WGRAD_TIMES = None

# how many floats apart lie filt[k, t, r, s, c] and filt[k + 1, t, r, s, c];
# and dy[n, o, p, q, k] and dy[n, o, p, q + 1, k]
FROM_K_TO_K = None
FROM_Q_TO_Q = None

# in wgrad, B is the windows of x. In one column of B (the same tap and channel), how many floats apart in x are the
IN_X = None  # elements in the rows of outputs q and q + 1
