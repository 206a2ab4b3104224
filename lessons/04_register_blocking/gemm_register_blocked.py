"""gemm_register_blocked: each thread computes an 8 x 8 tile of C in registers.

Previous step: gemm_rectangular_tiles
New idea: for every k a thread takes 8 values of A and 8 of B into registers and multiplies each with each. A is
    transposed while it is staged, so both tiles are read along rows, 128 bits at a time; the two pieces a thread
    reads of a row lie 64 columns apart, so that the threads of a warp together read a contiguous stretch.
Loads per FMA: (THREAD_M + THREAD_N) / (THREAD_M * THREAD_N) = 0.25 shared values in 0.06 instructions;
    1 / BLOCK_M + 1 / BLOCK_N = 0.016 global values.
Run: python -m lessons.04_register_blocking gemm_register_blocked
"""

from numba import cuda, float32, uint64

from lessons.toolkit.grid import row_slices
from lessons.toolkit.memory import VECTOR, aligned, load4, load4_guarded, shared_array, store4, store4_guarded

BLOCK_M, BLOCK_N, BLOCK_K = 128, 128, 16
THREAD_M, THREAD_N = 8, 8
TUNABLES = {"BLOCK_M": (64, 128), "BLOCK_N": (64, 128), "BLOCK_K": (8, 16), "THREAD_M": (4, 8), "THREAD_N": (4, 8)}

if BLOCK_M % THREAD_M or BLOCK_N % THREAD_N or THREAD_M % VECTOR or THREAD_N % VECTOR:
    raise ValueError(f"{BLOCK_M=} {BLOCK_N=} must be multiples of {THREAD_M=} {THREAD_N=}, these of {VECTOR=}")
THREADS_X, THREADS_Y = BLOCK_N // THREAD_N, BLOCK_M // THREAD_M
THREADS = THREADS_X * THREADS_Y
A_COLUMNS, B_COLUMNS = BLOCK_K // VECTOR, BLOCK_N // VECTOR  # 128-bit pieces in a row of the tile
A_ROWS, B_ROWS = THREADS // A_COLUMNS, THREADS // B_COLUMNS  # rows staged at a time
if THREADS > 1024 or BLOCK_M % A_ROWS or BLOCK_K % B_ROWS:
    raise ValueError(f"{BLOCK_M=} {BLOCK_N=} {BLOCK_K=} do not divide among {THREADS=}")
PAD = VECTOR  # keeps the transposed stores apart, and each row on a 16-byte boundary
A_STRIDE, B_STRIDE = BLOCK_M + PAD, BLOCK_N
A_SIZE, B_SIZE = BLOCK_K * A_STRIDE, BLOCK_K * B_STRIDE
ACC = THREAD_M * THREAD_N


@cuda.jit
def gemm_register_blocked(a, b, c, wide):
    a_tile, b_tile = shared_array(A_SIZE), shared_array(B_SIZE)
    stage = cuda.local.array(VECTOR, float32)
    a_frag, b_frag = cuda.local.array(THREAD_M, float32), cuda.local.array(THREAD_N, float32)
    acc = cuda.local.array(ACC, float32)
    K = a.shape[1]

    # locate: of each 4 * THREADS_Y rows (4 * THREADS_X columns) this thread has the 4 from ty (tx) on
    tx, ty = cuda.threadIdx.x * VECTOR, cuda.threadIdx.y * VECTOR
    m0 = cuda.blockIdx.y * BLOCK_M
    n0 = cuda.blockIdx.x * BLOCK_N
    thread = cuda.threadIdx.y * THREADS_X + cuda.threadIdx.x
    a_row, a_k = thread // A_COLUMNS, thread % A_COLUMNS * VECTOR
    b_row, b_n = thread // B_COLUMNS, thread % B_COLUMNS * VECTOR

    for i in range(ACC):
        acc[i] = float32(0.0)
    for k0 in range(0, K, BLOCK_K):
        # stage: A_ROWS or B_ROWS rows at a time; what lies outside A or B counts as zero
        for row0 in range(0, BLOCK_M, A_ROWS):
            row = row0 + a_row
            load4_guarded(stage, 0, a, m0 + row, k0 + a_k, wide)
            for v in range(VECTOR):
                a_tile[uint64((a_k + v) * A_STRIDE + row)] = stage[v]
        for row0 in range(0, BLOCK_K, B_ROWS):
            row = row0 + b_row
            load4_guarded(stage, 0, b, k0 + row, n0 + b_n, wide)
            store4(b_tile, row * B_STRIDE + b_n, stage, 0)
        cuda.syncthreads()

        # multiply
        for k in range(BLOCK_K):
            for i in range(0, THREAD_M, VECTOR):
                load4(a_frag, i, a_tile, k * A_STRIDE + i * THREADS_Y + ty)
            for j in range(0, THREAD_N, VECTOR):
                load4(b_frag, j, b_tile, k * B_STRIDE + j * THREADS_X + tx)
            for i in range(THREAD_M):
                for j in range(THREAD_N):
                    acc[i * THREAD_N + j] += a_frag[i] * b_frag[j]
        cuda.syncthreads()

    # store
    for i in range(THREAD_M):
        m = m0 + i // VECTOR * VECTOR * THREADS_Y + ty + i % VECTOR
        for j in range(0, THREAD_N, VECTOR):
            n = n0 + j * THREADS_X + tx
            store4_guarded(c, m, n, acc, i * THREAD_N + j, wide)


def launch(a, b, c):
    M, N = c.shape
    wide = aligned(a, b, c)
    for rows, grid in row_slices(M, N, BLOCK_M, BLOCK_N):
        gemm_register_blocked[grid, (THREADS_X, THREADS_Y)](a[rows], b, c[rows], wide)
