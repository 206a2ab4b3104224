"""One warp computes 16 x 8 of C, from fragments of bytes."""

from numba import cuda, int8, int32

from lessons.toolkit.grid import row_slices
from lessons.toolkit.mma import mma_m16n8k32_s8

REQUIRES = "8.0"
BLOCK_M, BLOCK_N, BLOCK_K = 16, 8, 32  # the tile that one instruction multiplies
THREADS = 32  # a warp
A_FRAG, B_FRAG, ACC = 16, 8, 4  # a lane's part of the tiles of A, B and C


@cuda.jit
def igemm_fragments(a, b, c):
    a_frag = cuda.local.array(A_FRAG, int8)
    b_frag = cuda.local.array(B_FRAG, int8)
    acc = cuda.local.array(ACC, int32)
    M, N = c.shape
    K = a.shape[1]

    # locate
    group, member = cuda.threadIdx.x // 4, cuda.threadIdx.x % 4
    m0 = cuda.blockIdx.y * BLOCK_M
    n0 = cuda.blockIdx.x * BLOCK_N

    for i in range(ACC):
        acc[i] = int32(0)
    for k0 in range(0, K, BLOCK_K):
        # stage: fours of neighbours along k; the second four of A is 8 rows below, the third 16 columns to the right
        for i in range(A_FRAG):
            m, k = m0 + group + i // 4 % 2 * 8, k0 + 4 * member + i % 4 + i // 8 * 16
            a_frag[i] = a[m, k] if m < M and k < K else int8(0)
        for i in range(B_FRAG):
            k, n = k0 + 4 * member + i % 4 + i // 4 * 16, n0 + group
            b_frag[i] = b[k, n] if k < K and n < N else int8(0)

        # multiply
        mma_m16n8k32_s8(acc, 0, a_frag, 0, b_frag, 0)

    # store
    for i in range(ACC):
        m, n = m0 + group + i // 2 * 8, n0 + 2 * member + i % 2
        if m < M and n < N:
            c[m, n] = acc[i]


def launch(a, b, c):
    M, N = c.shape
    for rows, grid in row_slices(M, N, BLOCK_M, BLOCK_N):
        igemm_fragments[grid, THREADS](a[rows], b, c[rows])
