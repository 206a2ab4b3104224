"""The sum runs over whole tiles of 16 along K and drops the rest.

Expect: wrong
Says: the sum stops at k = 16: the last 3 terms are left out
"""

from numba import cuda, float32

THREADS_X = 16
THREADS_Y = 8
BLOCK_K = 16


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    if m < M and n < N:
        acc = float32(0.0)
        for k in range(K // BLOCK_K * BLOCK_K):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    product[grid, (THREADS_X, THREADS_Y)](a, b, c)
