"""A product on tensor cores with all that feeds them: swizzled tiles, ldmatrix, copies in groups. For tests alone.

Two warps share a block of 32 x 64 sums; each has 16 rows. Whole tiles only.
"""

from numba import cuda, float32, uint32
from numba.types import float16

from lessons.toolkit.memory import commit_group, copy8_async, half_array, store2_rounded, wait_group
from lessons.toolkit.mma import ldmatrix4, ldmatrix4_transposed, mma_m16n8k16

BLOCK_M, BLOCK_N, BLOCK_K = 32, 64, 64
STAGES = 3
WARPS = 2
THREADS = 32 * WARPS
A_TILE, B_TILE = BLOCK_M * BLOCK_K, BLOCK_K * BLOCK_N
COPIES_A, COPIES_B = A_TILE // 8 // THREADS, B_TILE // 8 // THREADS


@cuda.jit
def hgemm(a, b, c):
    N, K = b.shape[1], a.shape[1]
    a_tiles = half_array(STAGES * A_TILE)
    b_tiles = half_array(STAGES * B_TILE)
    a_frag = cuda.local.array(8, float16)
    b_frag = cuda.local.array(8, float16)
    acc = cuda.local.array(32, float32)
    thread = uint32(cuda.threadIdx.x)
    lane, row = thread % uint32(32), thread // uint32(32) * uint32(16)
    m0, n0 = cuda.blockIdx.y * BLOCK_M, cuda.blockIdx.x * BLOCK_N
    for i in range(32):
        acc[i] = float32(0.0)
    tiles = K // BLOCK_K
    for step in range(1 - STAGES, tiles):
        if step >= 0:
            wait_group(STAGES - 2)
            cuda.syncthreads()
        k0, slot = (step + STAGES - 1) * BLOCK_K, (step + STAGES - 1) % STAGES
        if k0 < K:
            for v in range(COPIES_A):
                at = thread + v * THREADS
                m, k = at // 8, at % 8
                copy8_async(a_tiles, slot * A_TILE + m * BLOCK_K + 8 * (k ^ m % 8), a, (m0 + m) * K + k0 + 8 * k)
            for v in range(COPIES_B):
                at = thread + v * THREADS
                k, n = at // 8, at % 8
                copy8_async(b_tiles, slot * B_TILE + k * BLOCK_N + 8 * (n ^ k % 8), b, (k0 + k) * N + n0 + 8 * n)
        commit_group()
        if step >= 0:
            slot = step % STAGES
            for k in range(0, BLOCK_K, 16):
                m, kk = row + lane % 16, k // 8 + lane // 16
                ldmatrix4(a_frag, 0, a_tiles, slot * A_TILE + m * BLOCK_K + 8 * (kk ^ m % 8))
                for n in range(0, BLOCK_N // 8, 2):
                    kk, nn = k + lane % 16, n + lane // 16
                    ldmatrix4_transposed(b_frag, 0, b_tiles, slot * B_TILE + kk * BLOCK_N + 8 * (nn ^ kk % 8))
                    mma_m16n8k16(acc, 4 * n, a_frag, 0, b_frag, 0)
                    mma_m16n8k16(acc, 4 * n + 4, a_frag, 0, b_frag, 4)
    for n in range(BLOCK_N // 8):
        m, column = m0 + row + lane // 4, n0 + 8 * n + 2 * (lane % 4)
        store2_rounded(c, m * N + column, acc, 4 * n)
        store2_rounded(c, (m + 8) * N + column, acc, 4 * n + 2)


def launch(a, b, c):
    M, N = c.shape
    if M % BLOCK_M or N % BLOCK_N or a.shape[1] % BLOCK_K:
        raise ValueError("whole tiles only")
    hgemm[(N // BLOCK_N, M // BLOCK_M), THREADS](a, b, c)
