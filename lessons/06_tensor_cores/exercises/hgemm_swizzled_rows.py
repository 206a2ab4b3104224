"""Exercise 06.3, write: a swizzle for rows of 64 bytes.

Two warps compute 32 x 16 of C. a_tile has rows of 32 float16, 64 bytes: four pieces of 16 bytes, and every second row
begins in the same bank. ldmatrix4 reads eight rows at once, the same column of each. hgemm_swizzled lets pieces
change places by row % 8, but here a row has four. Write place(row, column), the index of an element in the flat
array, for columns that are multiples of 8: no wavefront too many, and no element unused.
Grade: python -m common grade 06.3
"""

from numba import cuda, float32
from numba.types import float16

from lessons.toolkit.grid import row_slices
from lessons.toolkit.memory import aligned, commit_group, copy8_guarded, half_array, store2_guarded, wait_group
from lessons.toolkit.mma import ldmatrix4, ldmatrix4_transposed, mma_m16n8k16

BLOCK_M, BLOCK_N, BLOCK_K = 32, 16, 32
THREADS = 64
A_SIZE, B_SIZE = BLOCK_M * BLOCK_K, BLOCK_K * BLOCK_N


@cuda.jit(device=True)
def place(row, column):
    # >>> your code: 1 line
    # where element (row, column) of a_tile lies, from 0 to A_SIZE - 1
    index = 0
    # <<<
    return index


@cuda.jit(device=True)
def place_of_b(row, column):
    return row * BLOCK_N + (column ^ (row // 4 % 2 * 8))  # the same for two pieces: four rows fill the 128 bytes


@cuda.jit
def hgemm_swizzled_rows(a, b, c, wide, paired):
    a_tile, b_tile = half_array(A_SIZE), half_array(B_SIZE)
    a_frag, b_frag = cuda.local.array(8, float16), cuda.local.array(8, float16)
    acc = cuda.local.array(8, float32)
    K = a.shape[1]

    # locate
    lane, warp_m = cuda.threadIdx.x % 32, cuda.threadIdx.x // 32 * 16
    m0, n0 = cuda.blockIdx.y * BLOCK_M, cuda.blockIdx.x * BLOCK_N

    for i in range(8):
        acc[i] = float32(0.0)
    for k0 in range(0, K, BLOCK_K):
        # stage
        for at in range(8 * cuda.threadIdx.x, A_SIZE, 8 * THREADS):
            copy8_guarded(a_tile, place(at // BLOCK_K, at % BLOCK_K), a, m0 + at // BLOCK_K, k0 + at % BLOCK_K, wide)
        for at in range(8 * cuda.threadIdx.x, BLOCK_K * BLOCK_N, 8 * THREADS):
            k, n = at // BLOCK_N, at % BLOCK_N
            copy8_guarded(b_tile, place_of_b(k, n), b, k0 + k, n0 + n, wide)
        commit_group()
        wait_group(0)
        cuda.syncthreads()

        # multiply
        for k in range(0, BLOCK_K, 16):
            ldmatrix4(a_frag, 0, a_tile, place(warp_m + lane % 16, k + lane // 16 * 8))
            ldmatrix4_transposed(b_frag, 0, b_tile, place_of_b(k + lane % 16, lane // 16 * 8))
            for j in range(0, 8, 4):
                mma_m16n8k16(acc, j, a_frag, 0, b_frag, j)
        cuda.syncthreads()

    # store
    for i in range(4):
        m, n = m0 + warp_m + i % 2 * 8 + lane // 4, n0 + i // 2 * 8 + 2 * (lane % 4)
        store2_guarded(c, m, n, acc, 2 * i, paired)


def launch(a, b, c):
    M, N = c.shape
    for rows, grid in row_slices(M, N, BLOCK_M, BLOCK_N):
        hgemm_swizzled_rows[grid, THREADS](a[rows], b, c[rows], aligned(a, b), aligned(c, to=4))
