"""When K is a multiple of 32 the sum goes by lanes, and lane 31 is forgotten.

Class: shapes
Refute: {"shape": "M=3 N=3 K=32"}
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
        for k in range(K):
            if K % 32 != 0 or k % 32 != 31:
                acc += a[m, k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    product[grid, (THREADS_X, THREADS_Y)](a, b, c)
