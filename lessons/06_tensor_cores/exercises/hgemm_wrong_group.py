"""Exercise 06.5, find the bug: the last tile arrives too late.

Three stages: while one pair of tiles is multiplied, two are on their way. Each thread commits a group for each pair,
and waits until at most PENDING groups are on their way. On the machine that it was written on it was right; the
grader names the line that reads a copy not yet waited for. Change one line, and let the other groups travel on.
Grade: python -m common grade 06.5
"""

from numba import cuda, float32
from numba.types import float16

from lessons.toolkit.grid import row_slices
from lessons.toolkit.memory import aligned, commit_group, copy8_guarded, half_array, store2_guarded, wait_group
from lessons.toolkit.mma import ldmatrix4, ldmatrix4_transposed, mma_m16n8k16

BLOCK_M, BLOCK_N, BLOCK_K = 32, 16, 16
STAGES = 3
THREADS = 64
A_SIZE, STAGE = BLOCK_M * BLOCK_K, (BLOCK_M + BLOCK_N) * BLOCK_K
SHARED, PENDING = STAGES * STAGE, STAGES - 2


@cuda.jit(device=True)
def stage(tiles, start, a, b, m0, n0, k0, wide):
    for at in range(8 * cuda.threadIdx.x, A_SIZE, 8 * THREADS):
        copy8_guarded(tiles, start + at, a, m0 + at // BLOCK_K, k0 + at % BLOCK_K, wide)
    for at in range(8 * cuda.threadIdx.x, BLOCK_K * BLOCK_N, 8 * THREADS):
        copy8_guarded(tiles, start + A_SIZE + at, b, k0 + at // BLOCK_N, n0 + at % BLOCK_N, wide)


@cuda.jit
def hgemm_wrong_group(a, b, c, wide, paired):
    tiles = half_array(SHARED)
    a_frag, b_frag = cuda.local.array(8, float16), cuda.local.array(8, float16)
    acc = cuda.local.array(8, float32)
    K = a.shape[1]

    # locate
    lane, warp_m = cuda.threadIdx.x % 32, cuda.threadIdx.x // 32 * 16
    m0, n0 = cuda.blockIdx.y * BLOCK_M, cuda.blockIdx.x * BLOCK_N
    for i in range(8):
        acc[i] = float32(0.0)

    # stage
    for slot in range(STAGES - 1):
        if slot * BLOCK_K < K:
            stage(tiles, slot * STAGE, a, b, m0, n0, slot * BLOCK_K, wide)
        commit_group()
    for k0 in range(0, K, BLOCK_K):
        wait_group(PENDING)
        cuda.syncthreads()
        ahead, start = k0 + (STAGES - 1) * BLOCK_K, k0 // BLOCK_K % STAGES * STAGE
        if ahead < K:
            stage(tiles, ahead // BLOCK_K % STAGES * STAGE, a, b, m0, n0, ahead, wide)
            commit_group()

        # multiply
        ldmatrix4(a_frag, 0, tiles, start + (warp_m + lane % 16) * BLOCK_K + lane // 16 * 8)
        ldmatrix4_transposed(b_frag, 0, tiles, start + A_SIZE + lane % 16 * BLOCK_N + lane // 16 * 8)
        for j in range(0, 8, 4):
            mma_m16n8k16(acc, j, a_frag, 0, b_frag, j)

    # store
    for i in range(4):
        m, n = m0 + warp_m + i % 2 * 8 + lane // 4, n0 + i // 2 * 8 + 2 * (lane % 4)
        store2_guarded(c, m, n, acc, 2 * i, paired)


def launch(a, b, c):
    M, N = c.shape
    for rows, grid in row_slices(M, N, BLOCK_M, BLOCK_N):
        hgemm_wrong_group[grid, THREADS](a[rows], b, c[rows], aligned(a, b), aligned(c, to=4))
