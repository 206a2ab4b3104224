"""Whole tiles of K run to the last but one; the rest is done apart, and is empty if 32 divides K.

Class: shapes
Refute: {"shape": "M=4 N=5 K=64"}
"""

from numba import cuda, float32

THREADS_X = 16
THREADS_Y = 8
TILE_K = 32


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    if m < M and n < N:
        acc = float32(0.0)
        whole = (K - 1) // TILE_K * TILE_K
        for k0 in range(0, whole, TILE_K):
            for k in range(k0, k0 + TILE_K):
                acc += a[m, k] * b[k, n]
        for k in range(whole, whole + K % TILE_K):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    product[grid, (THREADS_X, THREADS_Y)](a, b, c)
