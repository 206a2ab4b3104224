r"""A thread makes a NumPy array for its sums.

Fault: allocates
Shown by: both
Says: np.zeros makes an array, and a kernel makes none
"""

import numpy as np
from numba import cuda

T = 16


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    if m < M and n < N:
        sums = np.zeros(4, np.float32)  # <- here
        for k in range(K):
            sums[k % 4] += a[m, k] * b[k, n]
        c[m, n] = sums[0] + sums[1] + sums[2] + sums[3]


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // T), -(-M // T)), (T, T)](a, b, c)
