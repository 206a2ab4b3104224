"""Half of K, computed with /, is a float64, which is no index.

Fault: float-index
Shown by: compiler
Says: an index is a float64
"""

from numba import cuda, float32

TILE = 16


@cuda.jit
def product(a, b, c):
    n, m = cuda.grid(2)
    half = a.shape[1] / 2
    if m < c.shape[0] and n < c.shape[1]:
        acc = float32(0.0)
        for k in range(a.shape[1] // 2):
            acc += a[m, k] * b[k, n]
            acc += a[m, k + half] * b[k + half, n]  # <- here
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, b, c)
