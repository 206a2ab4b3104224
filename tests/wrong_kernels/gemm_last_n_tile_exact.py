"""The last block has N % 8 columns: none, if N is an exact multiple of 8.

Class: shapes
Refute: {"shape": "M=5 N=16 K=3"}
"""

from numba import cuda, float32

THREADS_X = 8
THREADS_Y = 16


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    columns = 8 if cuda.blockIdx.x < cuda.gridDim.x - 1 else N % 8
    if m < M and n < N:
        acc = float32(0.0)
        for k in range(K):
            acc += a[m, k] * b[k, n]
        if cuda.threadIdx.x < columns:
            c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    product[grid, (THREADS_X, THREADS_Y)](a, b, c)
