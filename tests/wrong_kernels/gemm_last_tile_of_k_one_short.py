"""A last tile that lacks one term (K = 31, 63 ...) counts as whole, and its last term is counted twice.

Class: shapes
Refute: {"shape": "M=4 N=5 K=31"}
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
        whole = (K + 1) // TILE_K * TILE_K
        for k0 in range(0, whole, TILE_K):
            for j in range(TILE_K):
                k = min(k0 + j, K - 1)
                acc += a[m, k] * b[k, n]
        for k in range(whole, K):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    product[grid, (THREADS_X, THREADS_Y)](a, b, c)
