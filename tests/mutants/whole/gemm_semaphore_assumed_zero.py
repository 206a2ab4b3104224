"""Semaphores in a workspace are taken to start as 0."""

import numpy as np
from numba import cuda, float32


@cuda.jit
def product(a, b, c, lock):
    n, m = cuda.grid(2)
    first = lock[m, n] == 0 if m < c.shape[0] and n < c.shape[1] else False
    if first:
        acc = float32(0.0)
        for k in range(a.shape[1]):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


def workspace(problem):
    return cuda.device_array((max(problem.M, 4096), max(problem.N, 4096)), np.int32)


def launch(a, b, c, lock):
    M, N = c.shape
    product[(-(-N // 16), -(-M // 8)), (16, 8)](a, b, c, lock)
