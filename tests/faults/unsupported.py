"""A kernel cannot make a list of arrays, or a dictionary.

Fault: unsupported
Shown by: compiler
Says: a dictionary is used here
"""

from numba import cuda, float32

TILE = 16


@cuda.jit
def product(a, b, c):
    n, m = cuda.grid(2)
    if m < c.shape[0] and n < c.shape[1]:
        sums = {"acc": float32(0.0)}
        for k in range(a.shape[1]):
            sums["acc"] += a[m, k] * b[k, n]  # <- here
        c[m, n] = sums["acc"]


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, b, c)
