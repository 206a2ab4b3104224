"""Exercise 04.2, find the bug: threads that queue at two banks.

A is staged transposed, so that the inner loop reads both tiles along a row. But one access of shared memory takes
eight wavefronts. Work out which bank each of the 32 lanes meets (a warp is two rows of this block), and change the
shape of one tile so that no access takes more than one. Padding as in section 3 leaves two: which lanes still meet?
Grade: python -m common grade 04.2
"""

from numba import cuda, float32

TILE = 16
A_SHAPE = (TILE, TILE)
B_SHAPE = (TILE, TILE)


@cuda.jit
def gemm_one_bank(a, b, c):
    a_tile = cuda.shared.array(A_SHAPE, float32)  # transposed: a_tile[k, m]
    b_tile = cuda.shared.array(B_SHAPE, float32)
    M, N = c.shape
    K = a.shape[1]

    # locate
    n, m = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y

    acc = float32(0.0)
    for k0 in range(0, K, TILE):
        # stage
        a_tile[tx, ty] = a[m, k0 + tx] if m < M and k0 + tx < K else float32(0.0)
        b_tile[ty, tx] = b[k0 + ty, n] if k0 + ty < K and n < N else float32(0.0)
        cuda.syncthreads()

        # multiply
        for k in range(TILE):
            acc += a_tile[k, ty] * b_tile[k, tx]
        cuda.syncthreads()

    # store
    if m < M and n < N:
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    gemm_one_bank[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, b, c)
