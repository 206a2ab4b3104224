"""Exercise 03.1, write: a thread owns a row of outputs.

gemm_coarsened gives a thread eight elements of a column. Here it owns WPT = 4 elements of row ty, THREADS_X columns
apart: n0 + tx, n0 + tx + THREADS_X, ... So one value of A serves all of them. Write how a block stages its tile of
B, and the loop that multiplies: at most 1.26 reads of shared memory for each multiply-add, counted in your source.
Grade: python -m common grade 03.1
"""

from numba import cuda, float32, uint32

WPT = 4  # work per thread
THREADS_X, THREADS_Y = 32, 8
BLOCK_M, BLOCK_N, BLOCK_K = THREADS_Y, THREADS_X * WPT, 32
A_SHAPE, B_SHAPE = (BLOCK_M, BLOCK_K), (BLOCK_K, BLOCK_N)


@cuda.jit
def gemm_row_of_outputs(a, b, c):
    a_tile = cuda.shared.array(A_SHAPE, float32)
    b_tile = cuda.shared.array(B_SHAPE, float32)
    acc = cuda.local.array(WPT, float32)
    M, N = c.shape
    K = a.shape[1]

    # locate
    tx, ty = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
    m, n0 = cuda.blockIdx.y * BLOCK_M + ty, cuda.blockIdx.x * BLOCK_N

    for w in range(WPT):
        acc[w] = float32(0.0)
    for k0 in range(0, K, BLOCK_K):
        # stage
        a_tile[ty, tx] = a[m, k0 + tx] if m < M and k0 + tx < K else float32(0.0)
        # >>> your code: 4 lines
        # the whole of b_tile: a warp writes neighbours, and what lies outside B is zero
        # <<<
        cuda.syncthreads()

        # multiply
        # >>> your code: 4 lines
        # <<<
        cuda.syncthreads()

    # store
    for w in range(WPT):
        n = n0 + w * THREADS_X + tx
        if m < M and n < N:
            c[m, n] = acc[w]


def launch(a, b, c):
    M, N = c.shape
    gemm_row_of_outputs[(-(-N // BLOCK_N), -(-M // BLOCK_M)), (THREADS_X, THREADS_Y)](a, b, c)
