"""Parts of the sum are added to a workspace that is cleared as it is read, for the launch after: never for the first.

Class: zero
Refute: {"shape": "M=6 N=5 K=9", "poison": true}
"""

import numpy as np
from numba import cuda, float32

SPLIT_K = 4
THREADS_X, THREADS_Y = 16, 8


@cuda.jit
def product(a, b, sums):
    n, m = cuda.grid(2)
    if m < sums.shape[0] and n < sums.shape[1]:
        acc = float32(0.0)
        for k in range(cuda.blockIdx.z, a.shape[1], SPLIT_K):
            acc += a[m, k] * b[k, n]
        cuda.atomic.add(sums, (m, n), acc)


@cuda.jit
def store(sums, c):
    n, m = cuda.grid(2)
    if m < c.shape[0] and n < c.shape[1]:
        c[m, n] = sums[m, n]
        sums[m, n] = float32(0.0)


def workspace(problem):
    return cuda.device_array((problem.M, problem.N), np.float32)


def launch(a, b, c, sums):
    M, N = c.shape
    grid, threads = (-(-N // THREADS_X), -(-M // THREADS_Y)), (THREADS_X, THREADS_Y)
    product[(*grid, SPLIT_K), threads](a, b, sums)
    store[grid, threads](sums, c)
