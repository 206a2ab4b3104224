"""48 blocks stay and take tile after tile, but at most two each.

Class: shapes
Refute: {"shape": "M=80 N=80 K=2"}
"""

from numba import cuda, float32

TILE = 8
BLOCKS = 48


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    tiles_n = (N + TILE - 1) // TILE
    tiles = (M + TILE - 1) // TILE * tiles_n
    for turn in range(2):
        tile = cuda.blockIdx.x + turn * BLOCKS
        if tile < tiles:
            m = tile // tiles_n * TILE + cuda.threadIdx.y
            n = tile % tiles_n * TILE + cuda.threadIdx.x
            if m < M and n < N:
                acc = float32(0.0)
                for k in range(a.shape[1]):
                    acc += a[m, k] * b[k, n]
                c[m, n] = acc


def launch(a, b, c):
    product[BLOCKS, (TILE, TILE)](a, b, c)
