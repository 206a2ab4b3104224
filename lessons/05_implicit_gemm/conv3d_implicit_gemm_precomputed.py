"""conv3d_implicit_gemm_precomputed: offsets come from a table, padding from a mask; a load adds and tests.

Previous step: conv3d_implicit_gemm
New idea: the address of an element of A is a sum. Where the window begins depends on gemm_m alone, how far into the
    window the element lies on gemm_k alone. So the first is worked out once per block, the second once per layer,
    in a table. Padding falls apart in the same way: each row has a mask with a bit for every t, r and s that falls
    outside the image, each gemm_k the bits of its own t, r and s. A load is one addition and one AND.
    This is another iterator for the same kernel.
Loads per FMA: 0.023 from global and 0.19 from shared memory. But for 2048 multiply-adds a thread now spends 12
    additions, 12 conversions to an address and 4 ANDs, where there would be 15 divisions.
Run: python -m lessons.05_implicit_gemm conv3d_implicit_gemm_precomputed
"""

import importlib
from functools import lru_cache

from numba import int64, uint32

from lessons.toolkit.tiles import mask_words, window_table, windows
from lessons.toolkit.unroll import inlined

analytic = importlib.import_module("lessons.05_implicit_gemm.conv3d_implicit_gemm")

# What a full GPU reaches with a tile, as a share of the best, and the tile
TILES = (
    (1.00, {"BLOCK_M": 64, "BLOCK_N": 128, "THREAD_M": 16, "THREAD_N": 8, "BLOCKS_PER_SM": 4}),
    (0.98, {"BLOCK_M": 128, "BLOCK_N": 64, "THREAD_M": 16, "THREAD_N": 8, "BLOCKS_PER_SM": 4}),
    (0.98, {"BLOCK_M": 64, "BLOCK_N": 64, "THREAD_M": 8, "THREAD_N": 8, "BLOCKS_PER_SM": 6}),
    (0.50, {"BLOCK_M": 32, "BLOCK_N": 32, "THREAD_M": 8, "THREAD_N": 4, "BLOCKS_PER_SM": 16}),
)
TUNABLES = analytic.TUNABLES
plan, shipped, workspace = analytic.planning.planned(TILES)


@lru_cache
def by_table(BLOCK_M, BLOCK_N, WORDS):
    """The iterator for tiles of so many rows, and masks of WORDS words.

    A block remembers where each row begins in x, where each filter begins, and the mask of each row; a thread the
    table's entry for its gemm_k: an offset, and the bits it needs.
    """
    MASKS, ROWS = BLOCK_M + BLOCK_N, BLOCK_M + BLOCK_N + BLOCK_M * WORDS
    ENTRY = 1 + WORDS
    begin_window = windows(WORDS, MASKS)

    @inlined
    def begin_row(rows, row, gemm_m, layer):
        """Where a row of A begins in x, and which of its taps fall outside."""
        x, filt, outputs, geometry, _ = layer
        N, D, H, W, C = x.shape
        _, T, R, S, _ = filt.shape
        O, P, Q = outputs
        GEMM_M = uint32(N * O * P * Q)
        begin_window(rows, rows, row, gemm_m, GEMM_M, (D, H, W, C), (T, R, S), outputs, geometry)

    @inlined
    def begin_filter(rows, row, gemm_n, layer):
        """Where a filter begins. Beyond the last, products are not stored: any filter will do."""
        K, T, R, S, C = layer.filt.shape
        rows[BLOCK_M + row] = min(gemm_n, uint32(K) - 1) * uint32(T * R * S * C)

    @inlined
    def begin_tile(here, gemm_k, layer):
        table = layer.extra
        for word in range(ENTRY):
            here[word] = table[gemm_k * ENTRY + word]

    @inlined
    def of_x(rows, row, here, gemm_m, layer):
        outside = rows[MASKS + row * WORDS] & here[1]
        for word in range(1, WORDS):
            outside |= rows[MASKS + row * WORDS + word] & here[1 + word]
        return uint32(int64(rows[row]) + here[0]), outside == 0

    @inlined
    def of_filt(rows, row, here, gemm_n, gemm_k, layer):
        _, T, R, S, C = layer.filt.shape
        return rows[BLOCK_M + row] + gemm_k, gemm_k < uint32(T * R * S * C)

    return analytic.Iterator(begin_row, begin_filter, begin_tile, of_x, of_filt, ROWS, ENTRY)


def prepare(filt, problem, **tile):
    """The filter, and for each gemm_k its offset from the start of a window and the bits of its t, r and s."""
    tile = {**shipped(problem), **tile}
    beyond = (tile["SPLIT_K"] + 2) * tile["BLOCK_K"]  # splits end with whole tiles; the last reads two pairs further
    return filt, window_table(problem, beyond)


def launch(x, prepared, y, geometry, partials=None, finish=None, **tile):
    filt, table = prepared
    K, T, R, S, C = filt.shape
    tile = {**plan(y.size // K, K, filt.size // K, C), **tile}
    iterator = by_table(tile["BLOCK_M"], tile["BLOCK_N"], mask_words(T, R, S))
    analytic.multiply(iterator, x, filt, y, geometry, table, partials, finish, **tile)
