"""A step that may round its operands to TF32 cuts them off.

Expect: imprecise
Says: right on integers, but off by .*, as from inputs that are cut off
"""

import numpy as np
from numba import cuda, float32

PRECISION = "tf32"
THREADS_X = 16
THREADS_Y = 8
KEPT_BITS = ~0x1FFF  # float32 has 23 bits of mantissa, the lowest 13 go


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    if m < M and n < N:
        acc = float32(0.0)
        for k in range(K):
            left = np.int32(a[m, k].view(np.int32) & KEPT_BITS).view(np.float32)
            right = np.int32(b[k, n].view(np.int32) & KEPT_BITS).view(np.float32)
            acc += left * right
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    product[grid, (THREADS_X, THREADS_Y)](a, b, c)
