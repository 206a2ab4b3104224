r"""launch wants an argument that the workbook does not pass.

Fault: launch
Shown by: both
Says: launch\(a, b, c, tile\) cannot be called as launch\(a, b, c\)
"""

from numba import cuda

TILE = 16


@cuda.jit
def product(a, b, c):
    n, m = cuda.grid(2)
    if m < c.shape[0] and n < c.shape[1]:
        c[m, n] = a[m, 0] * b[0, n]


def launch(a, b, c, tile):  # <- here
    M, N = c.shape
    product[(-(-N // tile), -(-M // tile)), (tile, tile)](a, b, c)
