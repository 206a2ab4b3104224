"""Extents that are all multiples of 16 take a path without guards, and its loop stops one tile early.

Class: shapes
Refute: {"shape": "M=16 N=16 K=32"}
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
        stop = K - 16 if M % 16 == 0 and N % 16 == 0 and K % 16 == 0 else K
        for k in range(stop):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    product[grid, (THREADS_X, THREADS_Y)](a, b, c)
