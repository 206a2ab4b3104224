"""Two arrays of dynamic shared memory are taken for two, and both begin at its first byte.

Class: sound
Refute: {"shape": "M=6 N=4 K=5", "unsound": "race", "ordinary": null}
"""

from numba import cuda, float32

from lessons.grid import row_slices

TILE = 16
BYTES = 2 * TILE * TILE * 4


@cuda.jit
def product(a, b, c):
    a_tile = cuda.shared.array(0, float32)
    b_tile = cuda.shared.array(0, float32)
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    acc = float32(0.0)
    for k0 in range(0, K, TILE):
        a_tile[ty * TILE + tx] = a[m, k0 + tx] if m < M and k0 + tx < K else float32(0.0)
        b_tile[ty * TILE + tx] = b[k0 + ty, n] if k0 + ty < K and n < N else float32(0.0)
        cuda.syncthreads()
        for k in range(TILE):
            acc += a_tile[ty * TILE + k] * b_tile[k * TILE + tx]
        cuda.syncthreads()
    if m < M and n < N:
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    for rows, grid in row_slices(M, N, TILE, TILE):
        product[grid, (TILE, TILE), 0, BYTES](a[rows], b, c[rows])
