"""Columns go along y, one a block, and are clipped at 65535.

Class: shapes
Refute: {"shape": "M=1 N=65540 K=1"}
"""

from numba import cuda, float32

THREADS = 1
MAX_GRID_Y = 65535


@cuda.jit
def product(a, b, c):
    m = cuda.grid(1)
    n = cuda.blockIdx.y
    if m < c.shape[0]:
        acc = float32(0.0)
        for k in range(a.shape[1]):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-M // THREADS), min(N, MAX_GRID_Y)), THREADS](a, b, c)
