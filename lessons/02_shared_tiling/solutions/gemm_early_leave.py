"""Exercise 02.3, find the bug: threads that leave early.

Threads outside C have no element to compute, so they return at once. It looks thrifty, and the others wait for them
at the barrier. (Some GPUs forgive that.) There is a second mistake in it, which no GPU forgives: what else were
these threads for? Change at most 6 lines.
Grade: python -m common grade 02.3
"""

from numba import cuda, float32

TILE = 16
TILE_SHAPE = (TILE, TILE)


@cuda.jit
def gemm_early_leave(a, b, c):
    a_tile = cuda.shared.array(TILE_SHAPE, float32)
    b_tile = cuda.shared.array(TILE_SHAPE, float32)
    M, N = c.shape
    K = a.shape[1]

    # locate
    n, m = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y

    acc = float32(0.0)
    for k0 in range(0, K, TILE):
        # stage
        a_tile[ty, tx] = a[m, k0 + tx] if m < M and k0 + tx < K else float32(0.0)
        b_tile[ty, tx] = b[k0 + ty, n] if k0 + ty < K and n < N else float32(0.0)
        cuda.syncthreads()

        # multiply
        for k in range(TILE):
            acc += a_tile[ty, k] * b_tile[k, tx]
        cuda.syncthreads()

    # store
    if m < M and n < N:
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    gemm_early_leave[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, b, c)
