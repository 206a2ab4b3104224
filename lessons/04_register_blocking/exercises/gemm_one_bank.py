"""Exercise 04.2, find the bug: sixteen threads that queue at two banks.

B is staged transposed, so that both tiles are read along a row. The result is right. But when a warp reads b_tile,
its threads ask few banks for many words. Count the banks, and change the shape of one tile.
Grade: python -m common grade 04.2
"""

from numba import cuda, float32

TILE = 16
A_SHAPE = (TILE, TILE)
B_SHAPE = (TILE, TILE)


@cuda.jit
def gemm_one_bank(a, b, c):
    a_tile = cuda.shared.array(A_SHAPE, float32)
    b_tile = cuda.shared.array(B_SHAPE, float32)  # transposed: b_tile[n, k]
    M, N = c.shape
    K = a.shape[1]

    # locate
    n, m = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y

    acc = float32(0.0)
    for k0 in range(0, K, TILE):
        # stage
        a_tile[ty, tx] = a[m, k0 + tx] if m < M and k0 + tx < K else float32(0.0)
        b_tile[tx, ty] = b[k0 + ty, n] if k0 + ty < K and n < N else float32(0.0)
        cuda.syncthreads()

        # multiply
        for k in range(TILE):
            acc += a_tile[ty, k] * b_tile[tx, k]
        cuda.syncthreads()

    # store
    if m < M and n < N:
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    gemm_one_bank[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, b, c)
