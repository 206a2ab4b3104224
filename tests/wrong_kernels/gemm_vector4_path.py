"""Rows and columns that are multiples of 4 take a vector path, which swaps the two middle lanes.

Class: shapes
Refute: {"shape": "M=8 N=8 K=8"}
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
        j = n
        if M % 4 == 0 and N % 4 == 0 and (n % 4 == 1 or n % 4 == 2):
            j = n ^ 3
        for k in range(K):
            acc += a[m, k] * b[k, j]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    product[grid, (THREADS_X, THREADS_Y)](a, b, c)
