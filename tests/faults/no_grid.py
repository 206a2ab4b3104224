"""A kernel is called without grid and block.

Fault: launch-form
Shown by: both
Says: no grid and no block|without a grid and a block
"""

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
    product(a, b, c)  # <- here
