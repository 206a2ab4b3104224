"""The sum is Python's sum over a generator.

Class: gpu
Refute: {"shape": "M=4 N=5 K=6", "compiles": false}
"""

from numba import cuda

THREADS_X = 16
THREADS_Y = 8


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    if m < M and n < N:
        c[m, n] = sum(a[m, k] * b[k, n] for k in range(K))


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    product[grid, (THREADS_X, THREADS_Y)](a, b, c)
