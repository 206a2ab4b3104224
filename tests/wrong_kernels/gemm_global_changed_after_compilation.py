"""launch sets a global that the kernel reads: on a GPU it keeps the value of the first compilation.

Class: gpu
Refute: {"shape": "M=4 N=5 K=6", "then": ["M=4 N=5 K=9"]}
"""

from numba import cuda, float32

THREADS_X = 16
THREADS_Y = 8
DEPTH = 0


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    n, m = cuda.grid(2)
    if m < M and n < N:
        acc = float32(0.0)
        for k in range(DEPTH):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    global DEPTH
    DEPTH = a.shape[1]
    M, N = c.shape
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    product[grid, (THREADS_X, THREADS_Y)](a, b, c)
