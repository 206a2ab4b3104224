"""The kernel calls a function of a library that knows nothing of GPUs.

Class: gpu
Refute: {"shape": "M=4 N=5 K=6", "compiles": false}
"""

from statistics import fmean

from numba import cuda

THREADS_X = 16
THREADS_Y = 8


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    if m < M and n < N:
        acc = 0.0
        for k in range(K):
            acc += fmean((a[m, k] * b[k, n],))
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    product[grid, (THREADS_X, THREADS_Y)](a, b, c)
