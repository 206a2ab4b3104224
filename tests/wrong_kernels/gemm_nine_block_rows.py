"""Blocks are numbered through, at most 8 rows of them: the ninth row computes the first.

Class: shapes
Refute: {"shape": "M=257 N=3 K=2"}
"""

from numba import cuda, float32

THREADS_X = 8
THREADS_Y = 32
ROWS = 8


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    blocks_n = (N + THREADS_X - 1) // THREADS_X
    block_m = cuda.blockIdx.x // blocks_n % ROWS
    block_n = cuda.blockIdx.x % blocks_n
    m = block_m * THREADS_Y + cuda.threadIdx.y
    n = block_n * THREADS_X + cuda.threadIdx.x
    if m < M and n < N:
        acc = float32(0.0)
        for k in range(K):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    grid = -(-N // THREADS_X) * -(-M // THREADS_Y)
    product[grid, (THREADS_X, THREADS_Y)](a, b, c)
