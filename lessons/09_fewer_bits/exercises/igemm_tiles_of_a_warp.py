"""Exercise 09.5, tune: at most 0.05 reads of global memory for each multiply-add.

A warp computes ROWS x COLUMNS tiles of 16 x 8, from registers alone: each fragment of A serves COLUMNS tiles, each of
B serves ROWS. Choose ROWS and COLUMNS. Nothing may spill.
Grade: python -m common grade 09.5
"""

from numba import cuda, int8, int32

from lessons.toolkit.grid import row_slices
from lessons.toolkit.mma import mma_m16n8k32_s8
from lessons.toolkit.unroll import unroll, unrolled

REQUIRES = "8.0"
ROWS, COLUMNS = 1, 1  # tiles of a warp
TUNABLES = {"ROWS": (1, 2, 4), "COLUMNS": (1, 2, 4, 8)}
A_FRAG, B_FRAG, ACC = 16 * ROWS, 8 * COLUMNS, 4 * ROWS * COLUMNS


@cuda.jit
@unroll
def igemm_tiles_of_a_warp(a, b, c):
    a_frag = cuda.local.array(A_FRAG, int8)
    b_frag = cuda.local.array(B_FRAG, int8)
    acc = cuda.local.array(ACC, int32)
    M, N = c.shape
    K = a.shape[1]

    # locate
    group, member = cuda.threadIdx.x // 4, cuda.threadIdx.x % 4
    m0, n0 = cuda.blockIdx.y * 16 * ROWS, cuda.blockIdx.x * 8 * COLUMNS

    for i in unrolled(ACC):
        acc[i] = int32(0)
    for k0 in range(0, K, 32):
        # stage
        for i in unrolled(A_FRAG):
            m, k = m0 + group + i // 4 % 2 * 8 + i // 16 * 16, k0 + 4 * member + i % 4 + i // 8 % 2 * 16
            a_frag[i] = a[m, k] if m < M and k < K else int8(0)
        for i in unrolled(B_FRAG):
            k, n = k0 + 4 * member + i % 4 + i // 4 % 2 * 16, n0 + group + i // 8 * 8
            b_frag[i] = b[k, n] if k < K and n < N else int8(0)

        # multiply
        for row in unrolled(ROWS):
            for column in unrolled(COLUMNS):
                mma_m16n8k32_s8(acc, 4 * (row * COLUMNS + column), a_frag, 16 * row, b_frag, 8 * column)

    # store
    for i in unrolled(ACC):
        m = m0 + i // 4 // COLUMNS * 16 + group + i // 2 % 2 * 8
        n = n0 + i // 4 % COLUMNS * 8 + 2 * member + i % 2
        if m < M and n < N:
            c[m, n] = acc[i]


def launch(a, b, c):
    M, N = c.shape
    for rows, grid in row_slices(M, N, 16 * ROWS, 8 * COLUMNS):
        igemm_tiles_of_a_warp[grid, 32](a[rows], b, c[rows])
