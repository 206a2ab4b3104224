r"""Rows have no edge guard: threads past the last row compute and store, too.

Expect: unsound
Says: axis 0 of a is read at (\d+), its extent is \1\b
Expect on GPU: wrote_outside
Says on GPU: written outside [cy]: .*\d past its end
"""

from numba import cuda, float32

THREADS_X = 16
THREADS_Y = 8


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    if n < N:
        acc = float32(0.0)
        for k in range(K):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    product[grid, (THREADS_X, THREADS_Y)](a, b, c)
