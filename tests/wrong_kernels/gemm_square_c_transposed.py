"""For a square C (M == N) it is stored transposed.

Class: shapes
Refute: {"shape": "M=6 N=6 K=3"}
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
            acc += a[m, k] * b[k, n]
        if M == N:
            c[n, m] = acc
        else:
            c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    product[grid, (THREADS_X, THREADS_Y)](a, b, c)
