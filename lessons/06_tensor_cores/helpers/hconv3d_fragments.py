"""How a warp of hconv3d_mma reads its fragments, and how tiles are filled whose pieces hold several taps."""

import importlib
from functools import lru_cache

from numba import cuda, float32, int64, uint32

from lessons.toolkit.memory import HALVES
from lessons.toolkit.mma import ldmatrix4, to_half
from lessons.toolkit.narrow import narrow
from lessons.toolkit.pasted import pasted
from lessons.toolkit.unroll import inlined, unroll, unrolled

pipelined = importlib.import_module("lessons.06_tensor_cores.hgemm_pipelined")
BLOCK_K, MMA_M, MMA_N, MMA_K = pipelined.BLOCK_K, pipelined.MMA_M, pipelined.MMA_N, pipelined.MMA_K
ROWS, COLUMNS, K_STEPS, place = pipelined.ROWS, pipelined.COLUMNS, pipelined.K_STEPS, pipelined.place


def reading(BLOCK_M):
    """Build the device function that says which rows a lane names to ldmatrix, in tiles of which A has BLOCK_M."""

    @pasted
    @unroll
    def name_rows(a_at, b_at, lane, warp_m, warp_n):
        """Rows of B are columns of the product: eight, the same rows eight k further, the next eight."""
        a_row, a_column = warp_m + lane % 16, lane // 16 * HALVES
        b_row, b_column = BLOCK_M + warp_n + lane // 16 * 8 + lane % 8, lane // 8 % 2 * HALVES
        for k in unrolled(K_STEPS):
            a_at[k] = place(a_row, k * MMA_K + a_column, uint32(BLOCK_K))
            b_at[k] = place(b_row, k * MMA_K + b_column, uint32(BLOCK_K))

    return name_rows


@inlined
@narrow
def load_fragments(half, tiles, start, k, a_at, b_at, a_frag, b_frag):
    """Sixteen gemm_k of the tiles to a half of the fragments; the lane names rows at a_at and b_at."""
    for i in range(ROWS):
        ldmatrix4(a_frag, (half * ROWS + i) * 8, tiles, start + a_at[k] + i * MMA_M * BLOCK_K)
    for j in range(0, COLUMNS, 2):
        ldmatrix4(b_frag, (half * COLUMNS + j) * 4, tiles, start + b_at[k] + j * MMA_N * BLOCK_K)


@lru_cache
def copying(WORDS, BLOCK_M, BLOCK_N, THREADS):
    """Build the device function that fills a pair of tiles, at once; masks have WORDS words."""
    ALL_ROWS, ENTRY = BLOCK_M + BLOCK_N, 1 + WORDS

    @inlined
    @narrow
    def copy_one_by_one(tiles, start, source, k0):
        x, filt, table, starts, masks, _, _, n0, GEMM_N, GEMM_K = source
        for i in range(cuda.threadIdx.x, ALL_ROWS * BLOCK_K, THREADS):
            row, column = i // BLOCK_K, i % BLOCK_K
            gemm_k, at = uint32(k0 + column), start + place(row, column, uint32(BLOCK_K))
            entry, outside = int64(gemm_k) * ENTRY, uint32(gemm_k >= GEMM_K)
            if row < BLOCK_M:
                for word in range(WORDS):
                    outside |= masks[row * WORDS + word] & table[entry + 1 + word]
            if outside != 0:
                tiles[at] = to_half(float32(0.0))
            elif row < BLOCK_M:
                tiles[at] = x[starts[row] + table[entry]]
            else:
                n = min(n0 + row - BLOCK_M, GEMM_N - 1)  # beyond the last: its products are not stored
                tiles[at] = filt[n * int64(GEMM_K) + gemm_k]

    return copy_one_by_one
