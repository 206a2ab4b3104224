"""gemm_shared_tile: each block stages square tiles of A and B in shared memory.

Previous step: gemm_naive
New idea: the threads of a block need the same rows of A and columns of B. Each thread fetches one element of either
    tile; after a barrier, all threads read them from shared memory.
Loads per FMA: 2 / TILE = 0.0625 from global memory, as an element fetched is used TILE times; 2 from shared memory.
Run: python -m lessons.02_shared_tiling gemm_shared_tile
"""

from numba import cuda, float32

from lessons.toolkit.grid import row_slices

TILE = 32  # a block computes TILE x TILE elements of C, one per thread
TILE_SHAPE = (TILE, TILE)


@cuda.jit
def gemm_shared_tile(a, b, c):
    a_tile = cuda.shared.array(TILE_SHAPE, float32)
    b_tile = cuda.shared.array(TILE_SHAPE, float32)
    M, N = c.shape
    K = a.shape[1]

    # locate
    n, m = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y

    acc = float32(0.0)
    for k0 in range(0, K, TILE):
        # stage: what lies outside A or B counts as zero
        a_tile[ty, tx] = a[m, k0 + tx] if m < M and k0 + tx < K else float32(0.0)
        b_tile[ty, tx] = b[k0 + ty, n] if k0 + ty < K and n < N else float32(0.0)
        cuda.syncthreads()  # nobody reads before all have written

        # multiply
        for k in range(TILE):
            acc += a_tile[ty, k] * b_tile[k, tx]
        cuda.syncthreads()  # nobody writes the next tiles before all have read these

    # store
    if m < M and n < N:
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    for rows, grid in row_slices(M, N, TILE, TILE):
        gemm_shared_tile[grid, (TILE, TILE)](a[rows], b, c[rows])
