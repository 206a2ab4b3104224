"""A device function makes a tile and fills it; called twice, it gives the same shared array twice.

Class: gpu
Refute: {"shape": "M=4 N=5 K=20", "compiles": false}
"""

from numba import cuda, float32

TILE = 16


@cuda.jit(device=True)
def staged(array, row, column):
    tile = cuda.shared.array((TILE, TILE), float32)
    inside = row < array.shape[0] and column < array.shape[1]
    tile[cuda.threadIdx.y, cuda.threadIdx.x] = array[row, column] if inside else float32(0.0)
    return tile


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    n, m = cuda.grid(2)
    acc = float32(0.0)
    for k0 in range(0, K, TILE):
        a_tile = staged(a, m, k0 + tx)
        b_tile = staged(b, k0 + ty, n)
        cuda.syncthreads()
        for k in range(TILE):
            acc += a_tile[ty, k] * b_tile[k, tx]
        cuda.syncthreads()
    if m < M and n < N:
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, b, c)
