"""Blocks are walked in groups of 16 rows of tiles; the last, smaller group is counted as a full one.

Class: shapes
Refute: {"shape": "M=272 N=40 K=2"}
"""

from numba import cuda, float32

TILE = 16
GROUP = 16


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    tiles_m, tiles_n = (M + TILE - 1) // TILE, (N + TILE - 1) // TILE
    group = min(tiles_m, GROUP)  # of the last group: min(tiles_m - first, GROUP)
    block = cuda.blockIdx.x
    first = block // (group * tiles_n) * group
    rest = block % (group * tiles_n)
    m = (first + rest % group) * TILE + cuda.threadIdx.y
    n = rest // group * TILE + cuda.threadIdx.x
    if m < M and n < N:
        acc = float32(0.0)
        for k in range(a.shape[1]):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[-(-M // TILE) * -(-N // TILE), (TILE, TILE)](a, b, c)
