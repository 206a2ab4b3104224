"""Fragments are read by ldmatrix from tiles in shared memory."""

from numba import cuda, float32
from numba.types import float16

from lessons.toolkit.grid import row_slices
from lessons.toolkit.memory import aligned, commit_group, copy8_guarded, half_array, store2_guarded, wait_group
from lessons.toolkit.mma import ldmatrix4, ldmatrix4_transposed, mma_m16n8k16

BLOCK_M, BLOCK_N, BLOCK_K = 32, 16, 32
THREADS = 64
A_SIZE, B_SIZE = BLOCK_M * BLOCK_K, BLOCK_K * BLOCK_N


@cuda.jit
def product(a, b, c, wide, paired):
    a_tile = half_array(A_SIZE)
    b_tile = half_array(B_SIZE)
    a_frag = cuda.local.array(8, float16)
    b_frag = cuda.local.array(8, float16)
    acc = cuda.local.array(8, float32)
    K = a.shape[1]
    thread = cuda.threadIdx.x
    lane, warp_m = thread % 32, thread // 32 * 16
    m0, n0 = cuda.blockIdx.y * BLOCK_M, cuda.blockIdx.x * BLOCK_N
    for i in range(8):
        acc[i] = float32(0.0)
    for k0 in range(0, K, BLOCK_K):
        for at in range(8 * thread, A_SIZE, 8 * THREADS):
            copy8_guarded(a_tile, at, a, m0 + at // BLOCK_K, k0 + at % BLOCK_K, wide)
        for at in range(8 * thread, B_SIZE, 8 * THREADS):
            copy8_guarded(b_tile, at, b, k0 + at // BLOCK_N, n0 + at % BLOCK_N, wide)
        commit_group()
        wait_group(0)
        cuda.syncthreads()
        for k in range(0, BLOCK_K, 16):
            ldmatrix4(a_frag, 0, a_tile, (warp_m + lane % 16) * BLOCK_K + k + lane // 16 * 8)
            ldmatrix4_transposed(b_frag, 0, b_tile, (k + lane % 16) * BLOCK_N + lane // 16 * 8)
            for j in range(0, 8, 4):
                mma_m16n8k16(acc, j, a_frag, 0, b_frag, j)
        cuda.syncthreads()
    for i in range(4):
        m, n = m0 + warp_m + i % 2 * 8 + lane // 4, n0 + i // 2 * 8 + 2 * (lane % 4)
        store2_guarded(c, m, n, acc, 2 * i, paired)


def launch(a, b, c):
    M, N = c.shape
    for rows, grid in row_slices(M, N, BLOCK_M, BLOCK_N):
        product[grid, THREADS](a[rows], b, c[rows], aligned(a, b), aligned(c, to=4))
