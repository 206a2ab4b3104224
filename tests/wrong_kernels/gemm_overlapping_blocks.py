"""Blocks are one column apart too little: their edges are computed twice, and stored twice.

Class: sound
Refute: {"shape": "M=4 N=40 K=3", "unsound": "race"}
"""

from numba import cuda, float32

THREADS_X = 16
THREADS_Y = 8


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    m = cuda.blockIdx.y * THREADS_Y + cuda.threadIdx.y
    n = cuda.blockIdx.x * (THREADS_X - 1) + cuda.threadIdx.x
    if m < M and n < N:
        acc = float32(0.0)
        for k in range(K):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // (THREADS_X - 1)), -(-M // THREADS_Y))
    product[grid, (THREADS_X, THREADS_Y)](a, b, c)
