"""If M is one short of a tile of 128 rows, the block takes the path without guards for whole tiles.

Class: shapes
Refute: {"shape": "M=127 N=2 K=3"}
"""

from numba import cuda, float32

THREADS_X = 4
THREADS_Y = 128


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    whole = (M + 1) % THREADS_Y == 0  # meant: M % THREADS_Y
    if (whole or m < M) and n < N:
        acc = float32(0.0)
        for k in range(K):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    product[grid, (THREADS_X, THREADS_Y)](a, b, c)
