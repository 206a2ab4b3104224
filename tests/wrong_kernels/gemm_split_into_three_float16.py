"""Each value is the sum of three float16: exact only while the third is no subnormal, and none is infinite.

Class: values
Refute: {"shape": "M=4 N=5 K=6", "inputs": "mixed"}
"""

import numpy as np
from numba import cuda, float32

THREADS_X = 16
THREADS_Y = 8


@cuda.jit(device=True)
def in_three(value):
    high = float32(np.float16(value))
    middle = float32(np.float16(value - high))
    low = float32(np.float16(value - high - middle))
    return high + middle + low


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    if m < M and n < N:
        acc = float32(0.0)
        for k in range(K):
            acc += in_three(a[m, k]) * in_three(b[k, n])
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    product[grid, (THREADS_X, THREADS_Y)](a, b, c)
