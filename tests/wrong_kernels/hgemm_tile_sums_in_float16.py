"""The sum of each 16 terms is put away in float16 before the next tile is added.

Class: values
Refute: {"shape": "M=6 N=7 K=4000"}
"""

from numba import cuda, float32
from numba.types import float16

TILE = 16


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    if m < M and n < N:
        total = float16(0.0)
        for k0 in range(0, K, TILE):
            acc = float32(total)
            for k in range(k0, min(k0 + TILE, K)):
                acc += float32(a[m, k]) * float32(b[k, n])
            total = float16(acc)
        c[m, n] = total


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // 16), -(-M // 8)), (16, 8)](a, b, c)
