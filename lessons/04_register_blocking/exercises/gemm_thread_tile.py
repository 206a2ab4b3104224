"""Exercise 04.10, tune: at most 0.1 reads from shared memory for each multiply-add.

A thread computes THREAD_M x THREAD_N elements of C, in a block of THREADS_X x THREADS_Y threads. Choose these, and
BLOCK_K, so that a multiply-add takes at most 0.1 reads of 128 bits from shared memory and 0.0042 from global
memory, arrays stay in registers, and a multiprocessor has room for 8 warps. A thread's two sides and
BLOCK_K are multiples of VECTOR = 4: else parts of a_tile are never written, and the result is NaN.
With a GPU: at least 35 percent of the floor's rate on gemm-2048.
Grade: python -m common grade 04.10
"""

from numba import cuda, float32

from lessons.toolkit.memory import VECTOR, aligned, load4, load4_guarded, shared_array, store4, store4_guarded

THREAD_M, THREAD_N = 4, 4  # multiples of VECTOR
BLOCK_K = 8  # a multiple of VECTOR
THREADS_X, THREADS_Y = 32, 8
BLOCK_M, BLOCK_N = THREAD_M * THREADS_Y, THREAD_N * THREADS_X
THREADS = THREADS_X * THREADS_Y
A_STRIDE = BLOCK_M + VECTOR
A_SIZE, B_SIZE, ACC = BLOCK_K * A_STRIDE, BLOCK_K * BLOCK_N, THREAD_M * THREAD_N
A_PIECES, B_PIECES = BLOCK_M * BLOCK_K // VECTOR, BLOCK_K * BLOCK_N // VECTOR


@cuda.jit
def gemm_thread_tile(a, b, c, wide):
    a_tile = shared_array(A_SIZE)
    b_tile = shared_array(B_SIZE)
    stage = cuda.local.array(VECTOR, float32)
    a_frag = cuda.local.array(THREAD_M, float32)
    b_frag = cuda.local.array(THREAD_N, float32)
    acc = cuda.local.array(ACC, float32)
    K = a.shape[1]

    # locate
    tx, ty = cuda.threadIdx.x * VECTOR, cuda.threadIdx.y * VECTOR
    m0, n0 = cuda.blockIdx.y * BLOCK_M, cuda.blockIdx.x * BLOCK_N
    thread = cuda.threadIdx.y * THREADS_X + cuda.threadIdx.x

    for i in range(ACC):
        acc[i] = float32(0.0)
    for k0 in range(0, K, BLOCK_K):
        # stage: pieces of VECTOR elements; A is transposed
        for piece in range(thread, A_PIECES, THREADS):
            row, k = piece // (BLOCK_K // VECTOR), piece % (BLOCK_K // VECTOR) * VECTOR
            load4_guarded(stage, 0, a, m0 + row, k0 + k, wide)
            for v in range(VECTOR):
                a_tile[(k + v) * A_STRIDE + row] = stage[v]
        for piece in range(thread, B_PIECES, THREADS):
            k, column = piece // (BLOCK_N // VECTOR), piece % (BLOCK_N // VECTOR) * VECTOR
            load4_guarded(stage, 0, b, k0 + k, n0 + column, wide)
            store4(b_tile, k * BLOCK_N + column, stage, 0)
        cuda.syncthreads()

        # multiply
        for k in range(BLOCK_K):
            for i in range(0, THREAD_M, VECTOR):
                load4(a_frag, i, a_tile, k * A_STRIDE + i * THREADS_Y + ty)
            for j in range(0, THREAD_N, VECTOR):
                load4(b_frag, j, b_tile, k * BLOCK_N + j * THREADS_X + tx)
            for i in range(THREAD_M):
                for j in range(THREAD_N):
                    acc[i * THREAD_N + j] += a_frag[i] * b_frag[j]
        cuda.syncthreads()

    # store
    for i in range(THREAD_M):
        for j in range(0, THREAD_N, VECTOR):
            m = m0 + i // VECTOR * VECTOR * THREADS_Y + ty + i % VECTOR
            store4_guarded(c, m, n0 + j * THREADS_X + tx, acc, i * THREAD_N + j, wide)


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // BLOCK_N), -(-M // BLOCK_M))
    gemm_thread_tile[grid, (THREADS_X, THREADS_Y)](a, b, c, aligned(a, b, c))
