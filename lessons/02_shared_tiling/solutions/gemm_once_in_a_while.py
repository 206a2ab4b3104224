"""Exercise 02.2, find the bug: right today, wrong tomorrow.

The first tiles are staged before the loop, each further pair at the end of a round. Two barriers in a round are
enough, and there are two. Yet on a GPU this kernel may pass many times, and then it does not; here the check knows.
Move one line.
Grade: python -m common grade 02.2
"""

from numba import cuda, float32

TILE = 16
TILE_SHAPE = (TILE, TILE)


@cuda.jit
def gemm_once_in_a_while(a, b, c):
    a_tile = cuda.shared.array(TILE_SHAPE, float32)
    b_tile = cuda.shared.array(TILE_SHAPE, float32)
    M, N = c.shape
    K = a.shape[1]

    # locate
    n, m = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y

    # stage: the first tiles
    a_tile[ty, tx] = a[m, tx] if m < M and tx < K else float32(0.0)
    b_tile[ty, tx] = b[ty, n] if ty < K and n < N else float32(0.0)
    acc = float32(0.0)
    for k0 in range(TILE, K + TILE, TILE):
        cuda.syncthreads()

        # multiply
        for k in range(TILE):
            acc += a_tile[ty, k] * b_tile[k, tx]
        cuda.syncthreads()

        # stage: the tiles of the next round
        a_tile[ty, tx] = a[m, k0 + tx] if m < M and k0 + tx < K else float32(0.0)
        b_tile[ty, tx] = b[k0 + ty, n] if k0 + ty < K and n < N else float32(0.0)

    # store
    if m < M and n < N:
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    gemm_once_in_a_while[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, b, c)
