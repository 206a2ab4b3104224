"""Blocks of 64 columns are counted with N + 62: a last block of one column is not started.

Class: shapes
Refute: {"shape": "M=2 N=65 K=3"}
"""

from numba import cuda, float32

BLOCK_N = 64


@cuda.jit
def product(a, b, c):
    m = cuda.blockIdx.y
    n = cuda.grid(1)
    if n < c.shape[1]:
        acc = float32(0.0)
        for k in range(a.shape[1]):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    blocks = max(1, (N + BLOCK_N - 2) // BLOCK_N)
    product[(blocks, M), BLOCK_N](a, b, c)
