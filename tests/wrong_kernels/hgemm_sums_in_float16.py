"""Sums are kept in float16, where the operands are.

Expect: wrong
Says: elements are wrong:
"""

import numpy as np
from numba import cuda


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    if m < M and n < N:
        acc = np.float16(0.0)
        for k in range(K):
            acc = np.float16(np.float32(acc) + np.float32(a[m, k]) * np.float32(b[k, n]))
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // 16), -(-M // 8)), (16, 8)](a, b, c)
