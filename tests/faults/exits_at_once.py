"""The file ends its process without a word.

Fault: ends-process
Shown by: both
Says: ends its process with exit code 0
"""

import os

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
    os._exit(0)  # <- here
    product[(-(-N // 16), -(-M // 8)), (16, 8)](a, b, c)
