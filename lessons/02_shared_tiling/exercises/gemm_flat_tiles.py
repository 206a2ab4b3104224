"""Exercise 02.5, write: tiles that have another shape than the block.

A block of BLOCK_N x BLOCK_M = 32 x 8 threads computes one element of C per thread. Its tile of A has 8 x 16
elements, fewer than there are threads; its tile of B has 16 x 32, more. Write how the threads stage both: number
them, and deal the elements out. Zero counts outside, and a warp reads along rows: at most 5 sectors for each
request.
Grade: python -m common grade 02.5
"""

from numba import cuda, float32

BLOCK_M, BLOCK_N, BLOCK_K = 8, 32, 16
THREADS = BLOCK_M * BLOCK_N
A_SHAPE, B_SHAPE = (BLOCK_M, BLOCK_K), (BLOCK_K, BLOCK_N)


@cuda.jit
def gemm_flat_tiles(a, b, c):
    a_tile = cuda.shared.array(A_SHAPE, float32)
    b_tile = cuda.shared.array(B_SHAPE, float32)
    M, N = c.shape
    K = a.shape[1]

    # locate
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    m0, n0 = cuda.blockIdx.y * BLOCK_M, cuda.blockIdx.x * BLOCK_N
    thread = ty * BLOCK_N + tx

    acc = float32(0.0)
    for k0 in range(0, K, BLOCK_K):
        # stage
        # >>> your code: 6 lines
        # all BLOCK_M * BLOCK_K elements of a_tile, all BLOCK_K * BLOCK_N of b_tile
        # <<<
        cuda.syncthreads()

        # multiply
        for k in range(BLOCK_K):
            acc += a_tile[ty, k] * b_tile[k, tx]
        cuda.syncthreads()

    # store
    if m0 + ty < M and n0 + tx < N:
        c[m0 + ty, n0 + tx] = acc


def launch(a, b, c):
    M, N = c.shape
    gemm_flat_tiles[(-(-N // BLOCK_N), -(-M // BLOCK_M)), (BLOCK_N, BLOCK_M)](a, b, c)
