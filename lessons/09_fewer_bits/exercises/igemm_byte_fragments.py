"""Exercise 09.1, write: fragments of bytes.

One warp computes 16 x 8 of C, 32 k at a time, by mma_m16n8k32_s8. A lane holds sixteen bytes of A and eight of B.
Each of its words holds four neighbours along k, which begin at k = 4 * member, and 16 further on in the later half of
its words; of A words 1 and 3 are of the row 8 below. Load them; what lies beyond M, N or K is zero.
Grade: python -m common grade 09.1
"""

from numba import cuda, int8, int32

from lessons.toolkit.grid import row_slices
from lessons.toolkit.mma import mma_m16n8k32_s8

REQUIRES = "8.0"
BLOCK_M, BLOCK_N, BLOCK_K = 16, 8, 32  # the tile that one instruction multiplies
THREADS = 32  # a warp
A_FRAG, B_FRAG, ACC = 16, 8, 4  # a lane's part of the tiles of A, B and C


@cuda.jit
def igemm_byte_fragments(a, b, c):
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
        # stage
        # >>> your code: 6 lines
        # <<<

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
        igemm_byte_fragments[grid, THREADS](a[rows], b, c[rows])
