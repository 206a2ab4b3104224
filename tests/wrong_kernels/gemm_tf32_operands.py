"""Operands are cut to TF32, 10 bits of mantissa.

Expect: imprecise
Says: right on integers but not precise: .*times the float32 bound.*TF32
"""

import numpy as np
from numba import cuda, float32

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
