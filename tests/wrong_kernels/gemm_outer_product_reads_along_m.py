"""An outer product (K = 1) guards B's row with M in place of N.

Class: shapes
Refute: {"shape": "M=3 N=5 K=1", "ordinary": "M=7 N=5 K=4"}
"""

from numba import cuda, float32

THREADS_X = 16
THREADS_Y = 8


@cuda.jit
def outer(a, b, c):
    M, N = c.shape
    n, m = cuda.grid(2)
    if m < M and n < N:
        c[m, n] = a[m, 0] * b[0, n] if n < M else float32(0.0)


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    if m < M and n < N:
        acc = float32(0.0)
        for k in range(K):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    kernel = outer if a.shape[1] == 1 else product
    kernel[grid, (THREADS_X, THREADS_Y)](a, b, c)
