"""The kernel gets one argument too few.

Fault: argument-count
Shown by: both
Says: called with 3 arguments, and it has 4 parameters|missing 1 required positional argument: 'K'
"""

from numba import cuda, float32

TILE = 16


@cuda.jit
def product(a, b, c, K):
    n, m = cuda.grid(2)
    if m < c.shape[0] and n < c.shape[1]:
        acc = float32(0.0)
        for k in range(K):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, b, c)  # <- here
