"""The number of a block column is kept in 4 bits.

Class: shapes
Refute: {"shape": "M=2 N=257 K=2"}
"""

from numba import cuda, float32

THREADS_X = 16
THREADS_Y = 8


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    m = cuda.blockIdx.y * THREADS_Y + cuda.threadIdx.y
    n = (cuda.blockIdx.x & 15) * THREADS_X + cuda.threadIdx.x
    if m < M and n < N:
        acc = float32(0.0)
        for k in range(K):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    product[grid, (THREADS_X, THREADS_Y)](a, b, c)
