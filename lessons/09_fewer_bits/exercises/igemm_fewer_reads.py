"""Exercise 09.6, tune: at most 0.05 reads of global memory for each multiply-add.

A warp has ROWS x COLUMNS instructions, 16 x 8 of C each, and reads their fragments from global memory: with one
instruction 0.19 values for each multiply-add. A fragment of A can serve all of B, and the other way round. A thread
may have 192 registers, and no stack.
Grade: python -m common grade 09.6
"""

from numba import cuda, int8, int32

from lessons.toolkit.mma import mma_m16n8k32_s8
from lessons.toolkit.unroll import unroll, unrolled

REQUIRES = "8.0"
ROWS, COLUMNS = 1, 1
A_FRAG, B_FRAG, ACC = 16 * ROWS, 8 * COLUMNS, 4 * ROWS * COLUMNS


@cuda.jit
@unroll
def igemm_fewer_reads(a, b, c):
    a_frag = cuda.local.array(A_FRAG, int8)
    b_frag = cuda.local.array(B_FRAG, int8)
    acc = cuda.local.array(ACC, int32)
    M, N = c.shape
    K = a.shape[1]
    group, member = cuda.threadIdx.x // 4, cuda.threadIdx.x % 4
    m0, n0 = cuda.blockIdx.x * 16 * ROWS, cuda.blockIdx.y * 8 * COLUMNS
    for i in range(ACC):
        acc[i] = int32(0)
    for k0 in range(0, K, 32):
        # stage
        for row in unrolled(ROWS):
            for i in unrolled(16):
                m, k = m0 + row * 16 + group + i // 4 % 2 * 8, k0 + 4 * member + i % 4 + i // 8 * 16
                a_frag[16 * row + i] = a[m, k] if m < M and k < K else int8(0)
        for column in unrolled(COLUMNS):
            for i in unrolled(8):
                k, n = k0 + 4 * member + i % 4 + i // 4 * 16, n0 + column * 8 + group
                b_frag[8 * column + i] = b[k, n] if k < K and n < N else int8(0)

        # multiply
        for row in unrolled(ROWS):
            for column in unrolled(COLUMNS):
                mma_m16n8k32_s8(acc, 4 * (row * COLUMNS + column), a_frag, 16 * row, b_frag, 8 * column)

    # store
    for row in unrolled(ROWS):
        for column in unrolled(COLUMNS):
            for i in unrolled(4):
                m, n = m0 + row * 16 + group + i // 2 * 8, n0 + column * 8 + 2 * member + i % 2
                if m < M and n < N:
                    c[m, n] = acc[4 * (row * COLUMNS + column) + i]


def launch(a, b, c):
    M, N = c.shape
    igemm_fewer_reads[(-(-M // (16 * ROWS)), -(-N // (8 * COLUMNS))), 32](a, b, c)
