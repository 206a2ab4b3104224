"""Sums are kept in float16.

Expect: imprecise
Says: right on integers but not precise: .*times the float32 bound.*float16
"""

import numpy as np
from numba import cuda

THREADS_X = 16
THREADS_Y = 8


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    if m < M and n < N:
        acc = np.float16(0.0)
        for k in range(K):
            acc = np.float16(acc + np.float16(a[m, k] * b[k, n]))
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    product[grid, (THREADS_X, THREADS_Y)](a, b, c)
