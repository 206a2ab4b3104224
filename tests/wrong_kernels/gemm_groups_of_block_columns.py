"""Blocks are walked in groups of 12 columns of tiles; a last, smaller group is never begun.

Class: shapes
Refute: {"shape": "M=4 N=200 K=2"}
"""

from numba import cuda, float32

TILE = 16
GROUP_N = 12


@cuda.jit
def product(a, b, c, height, width):
    M, N = c.shape
    group, place = cuda.blockIdx.x // (width * height), cuda.blockIdx.x % (width * height)
    m = place // width * TILE + cuda.threadIdx.y
    n = (group * width + place % width) * TILE + cuda.threadIdx.x
    if m < M and n < N:
        acc = float32(0.0)
        for k in range(a.shape[1]):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    height, tiles_n = -(-M // TILE), -(-N // TILE)
    width = min(tiles_n, GROUP_N)
    groups = tiles_n // width
    product[groups * width * height, (TILE, TILE)](a, b, c, height, width)
