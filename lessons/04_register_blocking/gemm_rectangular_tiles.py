"""gemm_rectangular_tiles: larger tiles that are not square, B transposed beforehand, padded rows.

Previous step: gemm_wide_loads
New idea: a 64 x 64 block of C uses each value from global memory twice as often as a 32 x 32 one, and BLOCK_K need
    not grow with it. B is transposed once, so A and B are staged alike, along k. But now a warp reads b_tile down a
    column, and without padding its 32 rows all start in the same bank. PAD = 1 shifts each row by one bank.
Loads per FMA: 1 / BLOCK_M + 1 / BLOCK_N = 0.03 global values; (WPT / 4 + 1) / WPT = 0.38 shared instructions.
    With PAD = 0, a warp takes 32 wavefronts to read four k of b_tile (the compiler makes it one 128-bit load); with
    PAD = 1, four wavefronts (four 32-bit loads).
Run: python -m lessons.04_register_blocking gemm_rectangular_tiles
"""

import importlib

from numba import cuda, float32, uint64

from lessons.toolkit.grid import row_slices
from lessons.toolkit.memory import VECTOR, aligned, load4, load4_guarded, shared_array, store4

prepare = importlib.import_module("lessons.04_register_blocking.helpers.transposed").prepare  # B's transpose, once

BLOCK_M, BLOCK_N, BLOCK_K = 64, 64, 32
WPT = 8  # work per thread: rows of C that one thread computes, of one column
PAD = 1  # unused values at the end of each row of b_tile
TUNABLES = {
    "BLOCK_M": (32, 64, 128), "BLOCK_N": (32, 64), "BLOCK_K": (16, 32), "WPT": (4, 8, 16), "PAD": (0, 1, 2, 4),
}  # fmt: skip

THREADS_X, THREADS_Y = BLOCK_N, BLOCK_M // WPT
THREADS = THREADS_X * THREADS_Y
A_COLUMNS, B_COLUMNS = BLOCK_K // VECTOR, BLOCK_K // VECTOR  # 128-bit pieces in a row of the tile
A_ROWS, B_ROWS = THREADS // A_COLUMNS, THREADS // B_COLUMNS  # rows staged at a time
if THREADS > 1024 or BLOCK_M % WPT or BLOCK_K % VECTOR or BLOCK_M % A_ROWS or BLOCK_N % B_ROWS:
    raise ValueError(f"{BLOCK_M=} {BLOCK_N=} {BLOCK_K=} do not divide among {THREADS=}")
B_STRIDE = BLOCK_K + PAD
A_SIZE, B_SIZE = BLOCK_M * BLOCK_K, BLOCK_N * B_STRIDE
A_FRAG = WPT * VECTOR


@cuda.jit
def gemm_rectangular_tiles(a, b_t, c, wide):
    a_tile, b_tile = shared_array(A_SIZE), shared_array(B_SIZE)
    stage = cuda.local.array(VECTOR, float32)
    a_frag = cuda.local.array(A_FRAG, float32)
    acc = cuda.local.array(WPT, float32)
    M, N = c.shape
    K = a.shape[1]

    # locate: this thread's rows are m0 + ty, m0 + ty + THREADS_Y, ..., its column n0 + tx
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    m0 = cuda.blockIdx.y * BLOCK_M
    n0 = cuda.blockIdx.x * BLOCK_N
    thread = cuda.threadIdx.y * THREADS_X + cuda.threadIdx.x
    a_row, a_k = thread // A_COLUMNS, thread % A_COLUMNS * VECTOR
    b_row, b_k = thread // B_COLUMNS, thread % B_COLUMNS * VECTOR

    for w in range(WPT):
        acc[w] = float32(0.0)
    for k0 in range(0, K, BLOCK_K):
        # stage: A_ROWS or B_ROWS rows at a time; what lies outside A or B counts as zero
        for row0 in range(0, BLOCK_M, A_ROWS):
            row = row0 + a_row
            load4_guarded(stage, 0, a, m0 + row, k0 + a_k, wide)
            store4(a_tile, row * BLOCK_K + a_k, stage, 0)
        for row0 in range(0, BLOCK_N, B_ROWS):
            row = row0 + b_row
            load4_guarded(stage, 0, b_t, n0 + row, k0 + b_k, wide)
            for v in range(VECTOR):  # padded rows do not start on 16-byte boundaries
                b_tile[uint64(row * B_STRIDE + b_k + v)] = stage[v]
        cuda.syncthreads()

        # multiply
        for k in range(0, BLOCK_K, VECTOR):
            for w in range(WPT):
                load4(a_frag, w * VECTOR, a_tile, (w * THREADS_Y + ty) * BLOCK_K + k)
            for u in range(VECTOR):
                b_value = b_tile[uint64(tx * B_STRIDE + k + u)]
                for w in range(WPT):
                    acc[w] += a_frag[w * VECTOR + u] * b_value
        cuda.syncthreads()

    # store
    n = n0 + tx
    for w in range(WPT):
        m = m0 + w * THREADS_Y + ty
        if m < M and n < N:
            c[m, n] = acc[w]


def launch(a, b_t, c):
    M, N = c.shape
    wide = aligned(a, b_t)
    for rows, grid in row_slices(M, N, BLOCK_M, BLOCK_N):
        gemm_rectangular_tiles[grid, (THREADS_X, THREADS_Y)](a[rows], b_t, c[rows], wide)
