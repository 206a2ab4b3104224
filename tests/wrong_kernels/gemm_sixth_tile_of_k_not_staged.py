"""All tiles along K are staged at once into 5 buffers; a sixth finds the first.

Class: shapes
Refute: {"shape": "M=5 N=6 K=81"}
"""

from numba import cuda, float32

TILE = 16
STAGES = 5
PAIR_SHAPE = (STAGES, TILE, TILE)


@cuda.jit
def product(a, b, c):
    a_tile = cuda.shared.array(PAIR_SHAPE, float32)
    b_tile = cuda.shared.array(PAIR_SHAPE, float32)
    M, N = c.shape
    K = a.shape[1]
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    n, m = cuda.grid(2)
    acc = float32(0.0)
    for stage in range(min(STAGES, (K + TILE - 1) // TILE)):
        k0 = stage * TILE
        a_tile[stage, ty, tx] = a[m, k0 + tx] if m < M and k0 + tx < K else float32(0.0)
        b_tile[stage, ty, tx] = b[k0 + ty, n] if k0 + ty < K and n < N else float32(0.0)
    cuda.syncthreads()
    for k0 in range(0, K, TILE):
        stage = k0 // TILE % STAGES
        for k in range(TILE):
            acc += a_tile[stage, ty, k] * b_tile[stage, k, tx]
    if m < M and n < N:
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, b, c)
