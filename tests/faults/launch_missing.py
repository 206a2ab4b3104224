r"""The function that starts the kernel has another name.

Fault: launch
Shown by: both
Says: launch is missing; a gemm step must define launch\(a, b, c\)
"""

from numba import cuda

TILE = 16


@cuda.jit
def product(a, b, c):
    n, m = cuda.grid(2)
    if m < c.shape[0] and n < c.shape[1]:
        c[m, n] = a[m, 0] * b[0, n]


def start(a, b, c):
    M, N = c.shape
    product[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, b, c)
