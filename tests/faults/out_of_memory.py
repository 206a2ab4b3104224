"""A workspace of ten terabytes.

Fault: memory
Shown by: both
Says: more memory|less free memory
"""

import numpy as np
from numba import cuda, float32

TILE = 16


@cuda.jit
def product(a, b, c, partial):
    n, m = cuda.grid(2)
    if m < c.shape[0] and n < c.shape[1]:
        acc = float32(0.0)
        for k in range(a.shape[1]):
            acc += a[m, k] * b[k, n]
        partial[m, n] = acc
        c[m, n] = partial[m, n]


def workspace(problem):
    return cuda.device_array((1 << 22, 5 << 17), np.float32)  # <- here


def launch(a, b, c, partial):
    M, N = c.shape
    product[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, b, c, partial)
