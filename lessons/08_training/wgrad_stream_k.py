"""wgrad_stream_k: the iterations of all 16 products in one row, cut into equal shares, one for each place on the GPU.

Previous step: wgrad_minimal_filtering
New idea: a block no longer belongs to a tile. An iteration multiplies BLOCK_K patches of one tile of one product. All
    iterations are numbered, and as many blocks as the GPU has places take equal shares: the end of one tile, perhaps
    whole ones, and the beginning of another, its segments. The host gives each block a list of these. Each segment's
    sums have memory of their own, and add_products adds those of a tile in order (Osama et al., "Stream-K", 2023).
    Products may now differ in length: where a patch has one row or column of dy only, those of zeros are left out.
    Layers of one output along an axis go to the step before: there two products must cancel, so be cut alike.
Loads per FMA: (THREAD_M + THREAD_N) / (THREAD_M * THREAD_N) = 0.19 shared values in 0.05 instructions;
    1 / BLOCK_M + 1 / BLOCK_N = 0.016 global values, and a tile of sums written and read for each segment: 0.004
    values with 512 channels and filters.
Run: python -m lessons.08_training wgrad_stream_k
"""

import importlib
from functools import lru_cache

import numpy as np
from numba import cuda, float32, int64, uint32

from lessons.toolkit.grid import jit, multiprocessors
from lessons.toolkit.memory import aligned, shared_array
from lessons.toolkit.tiles import ceil_div
from lessons.toolkit.unroll import inlined, unroll, unrolled

minimal_filtering = importlib.import_module("lessons.08_training.wgrad_minimal_filtering")
filtering = importlib.import_module("lessons.08_training.helpers.filtering")
patches = importlib.import_module("lessons.08_training.helpers.patches")
register_tiles = importlib.import_module("lessons.08_training.helpers.register_tiles")
PATCH, WINDOW, PRODUCTS = filtering.PATCH, filtering.WINDOW, filtering.PRODUCTS
LEFT, HERE = minimal_filtering.LEFT, minimal_filtering.HERE

ALGORITHM = "F(2x2,3x3)"
BLOCK_K = minimal_filtering.BLOCK_K
LEAST_SHARE = 8  # iterations of a block: fewer do not pay for its start


@inlined
def segment_of(work, block, i):
    """Row i of the block's work: the segment, its first row of xs and dys, m0 and n0, its iterations."""
    return work[block, i, 0], work[block, i, 1], work[block, i, 2], work[block, i, 3], work[block, i, 4]


@lru_cache
def specialise(BLOCK_M, BLOCK_N, THREAD_M, THREAD_N, BLOCKS_PER_SM):
    """Build the kernel of the products for a tile."""
    of = register_tiles.register_tiles(BLOCK_M, BLOCK_N, THREAD_M, THREAD_N, BLOCKS_PER_SM)
    THREADS, A_FRAG, B_FRAG, ACC, first_of_thread, _, _, row_of, store_row = of
    begin_at, ask = minimal_filtering.copies(THREADS, BLOCK_M, BLOCK_N)
    begin, multiply = register_tiles.double_buffered(of, BLOCK_M, BLOCK_N, BLOCK_K, ask)
    BOTH = 2 * BLOCK_K * (BLOCK_M + BLOCK_N)
    SLOT = BLOCK_M * BLOCK_N

    @jit(THREADS, BLOCKS_PER_SM)
    @unroll
    def wgrad_stream_k(xs, dys, sums, work):
        tiles = shared_array(BOTH)
        here = cuda.local.array(HERE, uint32)
        a_frag, b_frag = cuda.local.array(A_FRAG, float32), cuda.local.array(B_FRAG, float32)
        acc = cuda.local.array(ACC, float32)
        source = xs, dys
        thread_m, thread_n = first_of_thread()

        # locate: the block's first segment, and the next
        block, turn = cuda.blockIdx.x, uint32(1)
        segment, first, m0, n0, pairs = segment_of(work, block, 0)
        begin_at(here, first, m0, n0, source)
        _, first, m0, n0, next_pairs = segment_of(work, block, 1)

        # stage: the first pair of tiles
        start = int64(0)
        here[LEFT] = uint32(0)
        begin(source, here, tiles, a_frag, b_frag)

        while pairs > 0:
            # locate: where copies go on behind this segment; the one behind the next is read now: then nobody waits
            begin_at(here, first, m0, n0, source)
            turn = uint32(turn + 1)
            _, first, m0, n0, pairs_behind = segment_of(work, block, turn)

            # multiply: all pairs of the segment; beside the last travels the first of the next
            here[LEFT] = uint32(pairs - 1)
            start = multiply(int64(pairs), start, source, here, tiles, a_frag, b_frag, acc)

            # store: the sums of the segment, a whole tile
            for i in unrolled(THREAD_M):
                at = int64(segment) * SLOT + (thread_m + row_of(i)) * BLOCK_N + thread_n
                store_row(sums, at, True, 0, BLOCK_N, acc, int64(i), True)
            segment, pairs, next_pairs = uint32(segment + 1), next_pairs, pairs_behind

    return wgrad_stream_k, THREADS


def cut(tiles, blocks):
    """Who multiplies and adds what, for tiles given as (iterations, first row, m0, n0): work and first_segments.

    work[b, i] is segment i of block b: its number, its first row of xs and dys, m0, n0, its iterations. Two of none
    come last: the kernel reads that far ahead. Tile t has the segments first_segments[t] to first_segments[t + 1].
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


def workspace(problem):
    """What becomes of x and dy, the sums, the tables; for layers that the kernel does not do, that of another."""
    p = problem
    rows = padded_patches(p.N, p.P, p.Q)
    tile, *tables = plan(p.N, p.P, p.Q, p.K, p.C)
    sums = int(tables[-1][-1]) * tile["BLOCK_M"] * tile["BLOCK_N"]
    fits = filtering.fits(p, p.reduction, filtering.LEAST_SUM) and min(p.P, p.Q) > 1
    if not fits or max(PRODUCTS * rows * max(p.C, p.K), sums) >= 2**32:  # 32-bit offsets reach that far
        return *[None] * 5, minimal_filtering.workspace(problem)
    shapes = (PRODUCTS, rows, p.C), (PRODUCTS, rows, p.K), sums
    arrays = [cuda.device_array(shape, np.float32) for shape in shapes]
    return *arrays, *[cuda.to_device(table) for table in tables], None


def launch(x, dy, dfilt, geometry, workspace):
    xs, dys, sums, work, first_segments, other = workspace
    if xs is None:
        return minimal_filtering.launch(x, dy, dfilt, geometry, other)
    N, _, P, Q, K = dy.shape
    C = x.shape[4]
    if not aligned(x.reshape(x.size // C, C), dy.reshape(dy.size // K, K)):
        raise ValueError("x and dy must begin on a 16-byte boundary")
    tile, *_ = plan(N, P, Q, K, C)
    kernel, THREADS = specialise(**tile)

    patches.transform_without_gaps(x, dy, xs, dys, geometry)
    kernel[work.shape[0], THREADS](xs, dys, sums, work)
    patches.add_segments(sums, dfilt, first_segments, tile["BLOCK_M"], tile["BLOCK_N"])
