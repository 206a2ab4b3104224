"""A tile of 8 x 4 is one warp, so barriers are left out: nothing keeps the compiler or the warp in step.

Class: sound
Refute: {"shape": "M=5 N=9 K=20", "unsound": "race", "ordinary": null}
"""

from numba import cuda, float32

TILE = 4
TILE_N = 8
A_SHAPE = (TILE, TILE)
B_SHAPE = (TILE, TILE_N)


@cuda.jit
def product(a, b, c):
    a_tile = cuda.shared.array(A_SHAPE, float32)
    b_tile = cuda.shared.array(B_SHAPE, float32)
    M, N = c.shape
    K = a.shape[1]
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    n, m = cuda.grid(2)
    acc = float32(0.0)
    for k0 in range(0, K, TILE):
        if tx < TILE:
            a_tile[ty, tx] = a[m, k0 + tx] if m < M and k0 + tx < K else float32(0.0)
        b_tile[ty, tx] = b[k0 + ty, n] if k0 + ty < K and n < N else float32(0.0)
        for k in range(TILE):
            acc += a_tile[ty, k] * b_tile[k, tx]
    if m < M and n < N:
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // TILE_N), -(-M // TILE)), (TILE_N, TILE)](a, b, c)
