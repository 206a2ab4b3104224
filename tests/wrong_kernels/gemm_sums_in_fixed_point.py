"""Sums are kept in 64-bit fixed point with 32 bits after the point, so that their order does not matter.

Class: values
Refute: {"shape": "M=4 N=5 K=6", "inputs": "tiny"}
"""

from numba import cuda, float32, int64

THREADS_X = 16
THREADS_Y = 8
ONE = float(1 << 32)


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    if m < M and n < N:
        acc = int64(0)
        for k in range(K):
            acc += int64(float(a[m, k]) * b[k, n] * ONE)
        c[m, n] = float32(acc / ONE)


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    product[grid, (THREADS_X, THREADS_Y)](a, b, c)
