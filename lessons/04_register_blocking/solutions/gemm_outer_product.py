"""Exercise 04.1, write: four values of A, four of B, sixteen multiply-adds.

A thread owns a square of THREAD x THREAD elements of C, THREADS rows and columns apart. The tiles are staged; write
what a thread does for each k: read its fragments from shared memory, then multiply each value of A with each of B.
Grade: python -m common grade 04.1
"""

from numba import cuda, float32, uint32

THREAD = 4  # a thread computes THREAD x THREAD elements of C
THREADS = 8  # a block has THREADS x THREADS threads
BLOCK = THREAD * THREADS  # and computes BLOCK x BLOCK elements
BLOCK_K = 8
TILE_SHAPE = (BLOCK_K, BLOCK)
ACC = THREAD * THREAD


@cuda.jit
def gemm_outer_product(a, b, c):
    a_tile = cuda.shared.array(TILE_SHAPE, float32)  # transposed: a_tile[k, m]
    b_tile = cuda.shared.array(TILE_SHAPE, float32)
    a_frag = cuda.local.array(THREAD, float32)
    b_frag = cuda.local.array(THREAD, float32)
    acc = cuda.local.array(ACC, float32)
    M, N = c.shape
    K = a.shape[1]

    # locate: this thread's rows are m0 + ty, m0 + ty + THREADS, ..., its columns n0 + tx, n0 + tx + THREADS, ...
    tx, ty = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
    m0, n0 = cuda.blockIdx.y * BLOCK, cuda.blockIdx.x * BLOCK

    for i in range(ACC):
        acc[i] = float32(0.0)
    for k0 in range(0, K, BLOCK_K):
        # stage
        for i in range(THREAD):
            m, n = m0 + ty + i * THREADS, n0 + tx + i * THREADS
            a_tile[tx, ty + i * THREADS] = a[m, k0 + tx] if m < M and k0 + tx < K else float32(0.0)
            b_tile[ty, tx + i * THREADS] = b[k0 + ty, n] if k0 + ty < K and n < N else float32(0.0)
        cuda.syncthreads()

        # multiply
        for k in range(uint32(BLOCK_K)):
            # >>> your code: 6 lines
            # row k of either tile: this thread's values into a_frag and b_frag, then all products
            for i in range(THREAD):
                a_frag[i] = a_tile[k, ty + i * THREADS]
                b_frag[i] = b_tile[k, tx + i * THREADS]
            for i in range(THREAD):
                for j in range(THREAD):
                    acc[i * THREAD + j] += a_frag[i] * b_frag[j]
            # <<<
        cuda.syncthreads()

    # store
    for i in range(THREAD):
        for j in range(THREAD):
            m, n = m0 + ty + i * THREADS, n0 + tx + j * THREADS
            if m < M and n < N:
                c[m, n] = acc[i * THREAD + j]


def launch(a, b, c):
    M, N = c.shape
    gemm_outer_product[(-(-N // BLOCK), -(-M // BLOCK)), (THREADS, THREADS)](a, b, c)
