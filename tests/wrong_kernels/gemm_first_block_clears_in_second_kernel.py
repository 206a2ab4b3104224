"""B is turned by one kernel; in the next, block z = 0 clears C, and all add to it as they come.

Class: order
Refute: {"shape": "M=6 N=5 K=9", "flip": true}
"""

import numpy as np
from numba import cuda, float32

SPLIT_K = 4
THREADS_X, THREADS_Y = 16, 8


@cuda.jit
def turn(b, columns):
    n, k = cuda.grid(2)
    if k < b.shape[0] and n < b.shape[1]:
        columns[n, k] = b[k, n]


@cuda.jit
def product(a, columns, c):
    n, m = cuda.grid(2)
    if m < c.shape[0] and n < c.shape[1]:
        acc = float32(0.0)
        for k in range(cuda.blockIdx.z, a.shape[1], SPLIT_K):
            acc += a[m, k] * columns[n, k]
        if cuda.blockIdx.z == 0:
            c[m, n] = float32(0.0)
        cuda.atomic.add(c, (m, n), acc)


def workspace(problem):
    return cuda.device_array((problem.N, problem.K), np.float32)


def launch(a, b, c, columns):
    M, N = c.shape
    threads = (THREADS_X, THREADS_Y)
    turn[(-(-N // THREADS_X), -(-b.shape[0] // THREADS_Y)), threads](b, columns)
    product[(-(-N // THREADS_X), -(-M // THREADS_Y), SPLIT_K), threads](a, columns, c)
