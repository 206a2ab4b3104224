"""Who multiplies what in wgrad_stream_k: the tile, and equal shares of its iterations, one for each block."""

import importlib
from functools import lru_cache

import numpy as np

from lessons.toolkit.grid import multiprocessors
from lessons.toolkit.tiles import ceil_div
from lessons.toolkit.unroll import inlined

minimal_filtering = importlib.import_module("lessons.08_training.wgrad_minimal_filtering")
filtering = importlib.import_module("lessons.08_training.helpers.filtering")
PATCH, WINDOW, PRODUCTS, BLOCK_K = filtering.PATCH, filtering.WINDOW, filtering.PRODUCTS, minimal_filtering.BLOCK_K

LEAST_SHARE = 8  # iterations of a block: fewer do not pay for its start


def cut(tiles, blocks):
    """Who multiplies and adds what, for tiles given as (iterations, first row, m0, n0): work and first_segments.

    work[b, i] is segment i of block b: its number, its first row of xs and dys, m0, n0, its iterations. Two
    empty ones come last: the kernel reads that far ahead. Tile t has segments first_segments[t] to [t + 1].
    """
    steps, first, m0, n0 = np.array(tiles).T
    edges = np.cumsum([0, *steps])  # between tiles, and of shares
    shares = np.arange(blocks + 1) * edges[-1] // blocks
    begins = np.union1d(edges, shares)[:-1]
    tile, block = (np.searchsorted(those, begins, "right") - 1 for those in (edges, shares))
    first = first[tile] + (begins - edges[tile]) * BLOCK_K
    rows = np.stack([np.arange(begins.size), first, m0[tile], n0[tile], np.diff([*begins, edges[-1]])], axis=1)
    mine = [rows[block == one] for one in range(blocks)]
    most = max(map(len, mine)) + 2
    work = [np.concatenate([one, np.repeat(one[-1:] * (1, 1, 1, 1, 0), most - len(one), axis=0)]) for one in mine]
    return np.array(work, np.uint32), np.searchsorted(begins, edges).astype(np.uint32)


@inlined
def segment_of(work, block, i):
    """Row i of the block's work: the segment, its first row of xs and dys, m0 and n0, its iterations."""
    return work[block, i, 0], work[block, i, 1], work[block, i, 2], work[block, i, 3], work[block, i, 4]


def padded_patches(N, P, Q):
    """Rows of xs and dys for a product: its last iteration may read beyond the patches."""
    return N * ceil_div(P, PATCH) * ceil_div(Q, PATCH) + BLOCK_K


@lru_cache
def plan(N, P, Q, K, C):
    """The tile with which the GPU takes the least time, and its cut."""
    rows, columns = ([ceil_div(extent, PATCH)] * (WINDOW - 1) + [extent // PATCH] for extent in (P, Q))
    steps = [ceil_div(N * row * column, BLOCK_K) for row in rows for column in columns]  # of a tile of each product

    def iterations(tile):
        return ceil_div(K, tile["BLOCK_M"]) * ceil_div(C, tile["BLOCK_N"]) * sum(steps)

    def blocks(tile):
        return min(tile["BLOCKS_PER_SM"] * multiprocessors(), ceil_div(iterations(tile), LEAST_SHARE))

    fitting = minimal_filtering.fitting(K, C)
    _, tile = min(fitting, key=lambda choice: iterations(choice[1]) / blocks(choice[1]) / choice[0])
    tiles = [
        (steps[product], product * padded_patches(N, P, Q), m0, n0)
        for product in range(PRODUCTS)
        for n0 in range(0, C, tile["BLOCK_N"])
        for m0 in range(0, K, tile["BLOCK_M"])
    ]
    return tile, *cut(tiles, blocks(tile))
