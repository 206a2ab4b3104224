"""Exercise 03.1, write: one value of B from shared memory serves eight multiply-adds.

A thread owns WPT elements of one column of C, THREADS_Y rows apart, and their sums lie in registers. The tiles are
staged; write the loop that multiplies. It must read b_tile once for each k, and use what it read WPT times. The
grader counts the reads that are left in the machine code: equal ones the compiler may merge.
Grade: python -m common grade 03.1
"""

from numba import cuda, float32, uint32

TILE = 32
WPT = 8  # work per thread
THREADS_Y = TILE // WPT
TILE_SHAPE = (TILE, TILE)


@cuda.jit
def gemm_column_of_outputs(a, b, c):
    a_tile = cuda.shared.array(TILE_SHAPE, float32)
    b_tile = cuda.shared.array(TILE_SHAPE, float32)
    acc = cuda.local.array(WPT, float32)
    M, N = c.shape
    K = a.shape[1]

    # locate: this thread's rows are m0 + ty, m0 + ty + THREADS_Y, ...
    tx, ty = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
    m0, n = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE + tx

    for w in range(WPT):
        acc[w] = float32(0.0)
    for k0 in range(0, K, TILE):
        # stage
        for w in range(WPT):
            row = w * THREADS_Y + ty
            m, k = m0 + row, k0 + row
            a_tile[row, tx] = a[m, k0 + tx] if m < M and k0 + tx < K else float32(0.0)
            b_tile[row, tx] = b[k, n] if k < K and n < N else float32(0.0)
        cuda.syncthreads()

        # multiply
        # >>> your code: 4 lines
        for k in range(uint32(TILE)):
            b_value = b_tile[k, tx]
            for w in range(WPT):
                acc[w] += a_tile[w * THREADS_Y + ty, k] * b_value
        # <<<
        cuda.syncthreads()

    # store
    for w in range(WPT):
        m = m0 + w * THREADS_Y + ty
        if m < M and n < N:
            c[m, n] = acc[w]


def launch(a, b, c):
    M, N = c.shape
    gemm_column_of_outputs[(-(-N // TILE), -(-M // TILE)), (TILE, THREADS_Y)](a, b, c)
