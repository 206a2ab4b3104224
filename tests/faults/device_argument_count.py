"""A device function gets one argument too few.

Fault: argument-count
Shown by: both
Says: missing .*'acc'
"""

from numba import cuda, float32

TILE = 16


@cuda.jit(device=True)
def multiply_add(x, y, acc):
    return acc + x * y


@cuda.jit
def product(a, b, c):
    n, m = cuda.grid(2)
    if m < c.shape[0] and n < c.shape[1]:
        acc = float32(0.0)
        for k in range(a.shape[1]):
            acc = multiply_add(a[m, k], b[k, n])  # <- here
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, b, c)
