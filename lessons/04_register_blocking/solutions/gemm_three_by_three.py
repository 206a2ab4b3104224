"""Exercise 04.9, write: nine outputs for each thread, from a blank file.

Both levels of reuse: a block stages tiles in shared memory, and a thread computes THREAD x THREAD = 3 x 3 elements
of C from fragments in registers. At most 0.67 reads of shared memory for each multiply-add, counted in your source,
no stack, at most 7 sectors and 2 wavefronts for each request, and at least 64 threads in a block. Any extents must
be right.
Grade: python -m common grade 04.9
"""

from numba import cuda, float32

THREAD = 3


# >>> your code: 38 lines
THREADS = 16
BLOCK, BLOCK_K = THREAD * THREADS, 16
A_SHAPE, B_SHAPE, ACC = (BLOCK_K, BLOCK + 1), (BLOCK_K, BLOCK), THREAD * THREAD


@cuda.jit
def gemm_three_by_three(a, b, c):
    a_tile = cuda.shared.array(A_SHAPE, float32)
    b_tile = cuda.shared.array(B_SHAPE, float32)
    a_frag = cuda.local.array(THREAD, float32)
    b_frag = cuda.local.array(THREAD, float32)
    acc = cuda.local.array(ACC, float32)
    M, N = c.shape
    K = a.shape[1]
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    m0, n0 = cuda.blockIdx.y * BLOCK, cuda.blockIdx.x * BLOCK

    for i in range(ACC):
        acc[i] = float32(0.0)
    for k0 in range(0, K, BLOCK_K):
        for i in range(THREAD):
            m, n = m0 + ty + i * THREADS, n0 + tx + i * THREADS
            a_tile[tx, ty + i * THREADS] = a[m, k0 + tx] if m < M and k0 + tx < K else float32(0.0)
            b_tile[ty, tx + i * THREADS] = b[k0 + ty, n] if k0 + ty < K and n < N else float32(0.0)
        cuda.syncthreads()
        for k in range(BLOCK_K):
            for i in range(THREAD):
                a_frag[i] = a_tile[k, ty + i * THREADS]
                b_frag[i] = b_tile[k, tx + i * THREADS]
            for i in range(THREAD):
                for j in range(THREAD):
                    acc[i * THREAD + j] += a_frag[i] * b_frag[j]
        cuda.syncthreads()

    for i in range(THREAD):
        for j in range(THREAD):
            m, n = m0 + ty + i * THREADS, n0 + tx + j * THREADS
            if m < M and n < N:
                c[m, n] = acc[i * THREAD + j]


def launch(a, b, c):
    M, N = c.shape
    gemm_three_by_three[(-(-N // BLOCK), -(-M // BLOCK)), (THREADS, THREADS)](a, b, c)


# <<<
