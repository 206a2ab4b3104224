"""Tiles of a convolution filled value by value, where a piece of 16 bytes would hold several taps."""

import importlib
from functools import lru_cache

from numba import cuda, float32, int64, uint32

from lessons.toolkit.mma import to_half
from lessons.toolkit.unroll import inlined

pipelined = importlib.import_module("lessons.06_tensor_cores.hgemm_pipelined")
BLOCK_K, place = pipelined.BLOCK_K, pipelined.place


@lru_cache
def copying(WORDS, BLOCK_M, BLOCK_N, THREADS):
    """Build the device function that fills a pair of tiles, at once; masks have WORDS words."""
    ALL_ROWS, ENTRY = BLOCK_M + BLOCK_N, 1 + WORDS

    @inlined
    def copy_one_by_one(tiles, start, source, k0):
        x, filt, table, starts, masks, _, _, n0, GEMM_N, GEMM_K = source
        for i in range(cuda.threadIdx.x, ALL_ROWS * BLOCK_K, THREADS):
            row, column = uint32(i) // uint32(BLOCK_K), uint32(i) % uint32(BLOCK_K)
            gemm_k, at = uint32(k0 + column), start + place(row, column, uint32(BLOCK_K))
            outside = uint32(gemm_k >= GEMM_K)
            if row < BLOCK_M:
                for word in range(WORDS):
                    outside |= masks[row * uint32(WORDS) + uint32(word)] & table[gemm_k * ENTRY + 1 + word]
            if outside != 0:
                tiles[at] = to_half(float32(0.0))
            elif row < BLOCK_M:
                tiles[at] = x[uint32(starts[row] + table[gemm_k * ENTRY])]
            else:
                n = min(n0 + row - BLOCK_M, GEMM_N - 1)  # beyond the last: its products are not stored
                tiles[at] = filt[n * int64(GEMM_K) + gemm_k]

    return copy_one_by_one
