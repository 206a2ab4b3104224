"""A variable is a number in one branch and an array in the other.

Fault: two-types
Shown by: compiler
Says: row is a 1D array of float32 in one place and float32 in another
"""

from numba import cuda, float32

TILE = 16


@cuda.jit
def product(a, b, c):
    n, m = cuda.grid(2)
    if m < a.shape[0]:
        row = a[m]  # <- here
    else:
        row = float32(0.0)
    if m < c.shape[0] and n < c.shape[1]:
        acc = float32(0.0)
        for k in range(a.shape[1]):
            acc += row[k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, b, c)
