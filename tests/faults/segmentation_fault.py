"""An address that nobody owns is read outside Python.

Fault: died
Shown by: tracer
Says: died of SIGSEGV, segmentation fault
"""

import ctypes

from numba import cuda, float32


@cuda.jit
def product(a, b, c):
    n, m = cuda.grid(2)
    if m < c.shape[0] and n < c.shape[1]:
        acc = float32(0.0)
        for k in range(a.shape[1]):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    ctypes.string_at(0)  # <- here
    product[(-(-N // 16), -(-M // 8)), (16, 8)](a, b, c)
