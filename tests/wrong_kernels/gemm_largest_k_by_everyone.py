"""Every thread stores the number of tiles in shared memory, where some read it before a barrier.

Class: sound
Refute: {"shape": "M=4 N=5 K=20", "unsound": "race"}
"""

from numba import cuda, float32, int32

TILE = 16


@cuda.jit
def product(a, b, c):
    a_tile = cuda.shared.array((TILE, TILE), float32)
    b_tile = cuda.shared.array((TILE, TILE), float32)
    M, N = c.shape
    K = a.shape[1]
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    n, m = cuda.grid(2)
    tiles = cuda.shared.array(1, int32)
    if tx == 0 and ty == 0:
        tiles[0] = (K + TILE - 1) // TILE
    acc = float32(0.0)
    for k0 in range(0, K, TILE):
        a_tile[ty, tx] = a[m, k0 + tx] if m < M and k0 + tx < K else float32(0.0)
        b_tile[ty, tx] = b[k0 + ty, n] if k0 + ty < K and n < N else float32(0.0)
        cuda.syncthreads()
        for k in range(TILE):
            acc += a_tile[ty, k] * b_tile[k, tx]
        cuda.syncthreads()
        if ty == 1 and tx == 0:
            tiles[0] = 0  # none are left, says the last row of threads
        if tiles[0] * TILE > K + TILE:
            acc = float32(0.0)
    if m < M and n < N:
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, b, c)
