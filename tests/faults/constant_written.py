"""The kernel writes to an array of its module.

Fault: constant-written
Shown by: both
Says: writes to an array that it takes as a constant
"""

import numpy as np
from numba import cuda, float32

SUMS = np.zeros(4, np.float32)


@cuda.jit
def product(a, b, c):
    n, m = cuda.grid(2)
    if m < c.shape[0] and n < c.shape[1]:
        acc = float32(0.0)
        for k in range(a.shape[1]):
            acc += a[m, k] * b[k, n]
        SUMS[0] = acc  # <- here


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // 16), -(-M // 8)), (16, 8)](a, b, c)
