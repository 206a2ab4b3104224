"""A matrix times a vector (N = 1) has a path of its own, which takes only the first term.

Class: shapes
Refute: {"shape": "M=4 N=1 K=3"}
"""

from numba import cuda, float32

THREADS_X = 16
THREADS_Y = 8


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    if m < M and n < N:
        acc = float32(0.0)
        for k in range(1 if N == 1 else K):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    product[grid, (THREADS_X, THREADS_Y)](a, b, c)
