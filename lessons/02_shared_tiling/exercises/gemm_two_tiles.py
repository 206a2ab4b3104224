"""Exercise 02.1, write: stage two tiles, where B arrives transposed.

A block computes TILE x TILE elements of C, one per thread. Its tiles are BLOCK_K = 2 * TILE deep, so that each has
twice as many elements as the block has threads. prepare hands over B as b_t[N, K]: row n of b_t is column n of B.
Write what happens for each pair of tiles. What lies outside counts as zero, and a warp reads both matrices along
their rows: at most 6 sectors for each request.
Grade: python -m common grade 02.1
"""

import numpy as np
from numba import cuda, float32

TILE = 16
BLOCK_K = 2 * TILE
TILE_SHAPE = (TILE, BLOCK_K)


@cuda.jit
def gemm_two_tiles(a, b_t, c):
    a_tile = cuda.shared.array(TILE_SHAPE, float32)
    b_tile = cuda.shared.array(TILE_SHAPE, float32)
    M, N = c.shape
    K = a.shape[1]

    # locate
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    m0, n0 = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    m, n = m0 + ty, n0 + tx

    acc = float32(0.0)
    for k0 in range(0, K, BLOCK_K):
        # >>> your code: 7 lines
        # stage two elements of a and two of b_t; multiply from the tiles
        pass
        # <<<

    # store
    if m < M and n < N:
        c[m, n] = acc


def prepare(b, problem):
    return cuda.to_device(np.ascontiguousarray(b.copy_to_host().T))


def launch(a, b_t, c):
    M, N = c.shape
    gemm_two_tiles[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, b_t, c)
