r"""A block of 64 x 64 threads.

Fault: launch-limits
Shown by: both
Says: block \(64, 64, 1\) has 4096 threads: a block holds at most 1024
"""

from numba import cuda, float32

TILE = 64


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
    product[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, b, c)  # <- here
