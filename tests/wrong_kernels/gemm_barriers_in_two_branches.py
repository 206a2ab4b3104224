"""Half of the threads stage A and the other half B, and each half has a barrier of its own.

Class: sound
Refute: {"shape": "M=4 N=5 K=20", "unsound": "barrier", "ordinary": null}
"""

from numba import cuda, float32

TILE = 16
HALF = TILE // 2


@cuda.jit
def product(a, b, c):
    a_tile = cuda.shared.array((TILE, TILE), float32)
    b_tile = cuda.shared.array((TILE, TILE), float32)
    M, N = c.shape
    K = a.shape[1]
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    n, m = cuda.grid(2)
    acc = float32(0.0)
    for k0 in range(0, K, TILE):
        if ty < HALF:
            for i in range(ty, TILE, HALF):
                inside = m - ty + i < M and k0 + tx < K
                a_tile[i, tx] = a[m - ty + i, k0 + tx] if inside else float32(0.0)
            cuda.syncthreads()
        else:
            for i in range(ty - HALF, TILE, HALF):
                inside = k0 + i < K and n < N
                b_tile[i, tx] = b[k0 + i, n] if inside else float32(0.0)
            cuda.syncthreads()
        for k in range(TILE):
            acc += a_tile[ty, k] * b_tile[k, tx]
        cuda.syncthreads()
    if m < M and n < N:
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, b, c)
