"""Dynamic shared memory is taken to start as zero: the tile's rest beyond K is never written.

Class: zero
Refute: {"shape": "M=6 N=4 K=200", "ordinary": null}
"""

from numba import cuda, float32

TX, TY, TILE_K = 8, 4, 96


@cuda.jit
def product(a, b, c):
    tiles = cuda.shared.array(0, float32)
    M, N = c.shape
    K = a.shape[1]
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    n, m = cuda.grid(2)
    base = TY * TILE_K
    acc = float32(0.0)
    for k0 in range(0, K, TILE_K):
        for k in range(tx, TILE_K, TX):
            if m < M and k0 + k < K:
                tiles[ty * TILE_K + k] = a[m, k0 + k]
        for k in range(ty, TILE_K, TY):
            if n < N and k0 + k < K:
                tiles[base + k * TX + tx] = b[k0 + k, n]
        cuda.syncthreads()
        for k in range(TILE_K):
            acc += tiles[ty * TILE_K + k] * tiles[base + k * TX + tx]
        cuda.syncthreads()
    if m < M and n < N:
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // TX), -(-M // TY)), (TX, TY), 0, 4 * TILE_K * (TX + TY)](a, b, c)
