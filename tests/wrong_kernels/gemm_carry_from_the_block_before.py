"""Block z goes on from the sum that block z - 1 has left, and waits for nobody; a second kernel copies the last sum.

Class: order
Refute: {"shape": "M=6 N=5 K=20", "flip": true}
"""

import numpy as np
from numba import cuda, float32

SPLIT_K = 4
THREADS_X, THREADS_Y = 16, 8


@cuda.jit
def product(a, b, sums):
    n, m = cuda.grid(2)
    z = cuda.blockIdx.z
    if m < sums.shape[1] and n < sums.shape[2]:
        K = a.shape[1]
        part = (K + SPLIT_K - 1) // SPLIT_K
        acc = sums[z - 1, m, n] if z > 0 else float32(0.0)
        for k in range(z * part, min((z + 1) * part, K)):
            acc += a[m, k] * b[k, n]
        sums[z, m, n] = acc


@cuda.jit
def copy(sums, c):
    n, m = cuda.grid(2)
    if m < c.shape[0] and n < c.shape[1]:
        c[m, n] = sums[SPLIT_K - 1, m, n]


def workspace(problem):
    return cuda.device_array((SPLIT_K, problem.M, problem.N), np.float32)


def launch(a, b, c, sums):
    M, N = c.shape
    grid, threads = (-(-N // THREADS_X), -(-M // THREADS_Y)), (THREADS_X, THREADS_Y)
    product[(*grid, SPLIT_K), threads](a, b, sums)
    copy[grid, threads](sums, c)
