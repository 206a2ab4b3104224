"""Exercise 04.4, write: a thread's rectangle of outputs.

A thread owns THREAD_M x THREAD_N = 2 x 8 elements of C: rows m0 + ty and m0 + ty + THREADS_Y, and every THREADS_X-th
column from n0 + tx on. The tiles are staged; write what a thread does for each k, and the store. Each value is read
from shared memory once: at most 0.63 reads for each multiply-add, counted in your source.
Grade: python -m common grade 04.4
"""

from numba import cuda, float32, uint32

THREAD_M, THREAD_N = 2, 8  # a thread computes THREAD_M x THREAD_N elements of C
THREADS_X, THREADS_Y = 8, 16
BLOCK_M, BLOCK_N, BLOCK_K = THREAD_M * THREADS_Y, THREAD_N * THREADS_X, 8
THREADS = THREADS_X * THREADS_Y
A_SHAPE, B_SHAPE = (BLOCK_K, BLOCK_M), (BLOCK_K, BLOCK_N)
ACC = THREAD_M * THREAD_N


@cuda.jit
def gemm_outer_product(a, b, c):
    a_tile = cuda.shared.array(A_SHAPE, float32)  # transposed: a_tile[k, m]
    b_tile = cuda.shared.array(B_SHAPE, float32)
    a_frag = cuda.local.array(THREAD_M, float32)
    b_frag = cuda.local.array(THREAD_N, float32)
    acc = cuda.local.array(ACC, float32)
    M, N = c.shape
    K = a.shape[1]

    # locate
    tx, ty = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
    m0, n0 = cuda.blockIdx.y * BLOCK_M, cuda.blockIdx.x * BLOCK_N
    thread = ty * THREADS_X + tx

    for i in range(ACC):
        acc[i] = float32(0.0)
    for k0 in range(0, K, BLOCK_K):
        # stage
        for i in range(thread, BLOCK_M * BLOCK_K, THREADS):
            m, k = m0 + i // BLOCK_K, k0 + i % BLOCK_K
            a_tile[i % BLOCK_K, i // BLOCK_K] = a[m, k] if m < M and k < K else float32(0.0)
        for i in range(thread, BLOCK_K * BLOCK_N, THREADS):
            k, n = k0 + i // BLOCK_N, n0 + i % BLOCK_N
            b_tile[i // BLOCK_N, i % BLOCK_N] = b[k, n] if k < K and n < N else float32(0.0)
        cuda.syncthreads()

        # multiply
        for k in range(uint32(BLOCK_K)):
            # >>> your code: 7 lines
            # row k of either tile: this thread's values into a_frag and b_frag, then all products
            pass
            # <<<
        cuda.syncthreads()

    # store
    # >>> your code: 5 lines
    # <<<


def launch(a, b, c):
    M, N = c.shape
    gemm_outer_product[(-(-N // BLOCK_N), -(-M // BLOCK_M)), (THREADS_X, THREADS_Y)](a, b, c)
