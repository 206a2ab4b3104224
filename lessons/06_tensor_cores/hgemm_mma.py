"""hgemm_mma: one warp computes one 16 x 8 tile of C, sixteen k at a time, with one instruction.

Previous step: none
New idea: a matrix unit. `mma.sync` multiplies 16 x 16 of A by 16 x 8 of B for a whole warp: 2,048 multiply-adds. Each
    lane brings eight values of A and four of B, its fragments, and keeps four sums; the hardware says which.
Loads per FMA: a lane loads 12 values for 64 multiply-adds, 0.19, where gemm_naive loads 2.
Run: python -m lessons.06_tensor_cores hgemm_mma
"""

from numba import cuda, float32
from numba.types import float16

from lessons.toolkit.grid import row_slices
from lessons.toolkit.mma import mma_m16n8k16, to_half

REQUIRES = "8.0"
BLOCK_M, BLOCK_N, BLOCK_K = 16, 8, 16  # the tile that one instruction multiplies
THREADS = 32  # a warp
A_FRAG, B_FRAG, ACC = 8, 4, 4  # a lane's part of the tiles of A, B and C


@cuda.jit
def hgemm_mma(a, b, c):
    a_frag, b_frag = cuda.local.array(A_FRAG, float16), cuda.local.array(B_FRAG, float16)
    acc = cuda.local.array(ACC, float32)
    M, N = c.shape
    K = a.shape[1]

    # locate
    group, member = cuda.threadIdx.x // 4, cuda.threadIdx.x % 4
    m0, n0 = cuda.blockIdx.y * BLOCK_M, cuda.blockIdx.x * BLOCK_N

    zero = to_half(float32(0.0))
    for i in range(ACC):
        acc[i] = float32(0.0)
    for k0 in range(0, K, BLOCK_K):
        # stage: pairs of neighbours along k; the second pair of A is 8 rows below, the third 8 columns to the right
        for i in range(A_FRAG):
            m, k = m0 + group + i // 2 % 2 * 8, k0 + 2 * member + i % 2 + i // 4 * 8
            a_frag[i] = a[m, k] if m < M and k < K else zero
        for i in range(B_FRAG):
            k, n = k0 + 2 * member + i % 2 + i // 2 * 8, n0 + group
            b_frag[i] = b[k, n] if k < K and n < N else zero

        # multiply
        mma_m16n8k16(acc, 0, a_frag, 0, b_frag, 0)

    # store
    for i in range(ACC):
        m, n = m0 + group + i // 2 * 8, n0 + 2 * member + i % 2
        if m < M and n < N:
            c[m, n] = to_half(acc[i])


def launch(a, b, c):
    M, N = c.shape
    for rows, grid in row_slices(M, N, BLOCK_M, BLOCK_N):
        hgemm_mma[grid, THREADS](a[rows], b, c[rows])
