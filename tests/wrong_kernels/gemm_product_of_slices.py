"""A row and a column are multiplied by NumPy inside the kernel.

Class: gpu
Refute: {"shape": "M=4 N=5 K=6", "compiles": false}
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
        c[m, n] = np.dot(a[m], b[:, n])


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    product[grid, (THREADS_X, THREADS_Y)](a, b, c)
