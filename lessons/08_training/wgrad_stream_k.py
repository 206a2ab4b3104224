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

from lessons.toolkit.grid import jit
from lessons.toolkit.memory import aligned, shared_array
from lessons.toolkit.unroll import unroll, unrolled

minimal_filtering = importlib.import_module("lessons.08_training.wgrad_minimal_filtering")
filtering = importlib.import_module("lessons.08_training.helpers.filtering")
patches = importlib.import_module("lessons.08_training.helpers.patches")
planning = importlib.import_module("lessons.08_training.helpers.stream_k_plan")
register_tiles = importlib.import_module("lessons.08_training.helpers.register_tiles")
PRODUCTS, LEFT, HERE = filtering.PRODUCTS, minimal_filtering.LEFT, minimal_filtering.HERE

ALGORITHM = "F(2x2,3x3)"
BLOCK_K = minimal_filtering.BLOCK_K
plan, padded_patches, segment_of = planning.plan, planning.padded_patches, planning.segment_of


@lru_cache
def specialise(BLOCK_M, BLOCK_N, THREAD_M, THREAD_N, BLOCKS_PER_SM):
    """Build the kernel of the products for a tile."""
    of = register_tiles.register_tiles(BLOCK_M, BLOCK_N, THREAD_M, THREAD_N, BLOCKS_PER_SM)
    THREADS, A_FRAG, B_FRAG, ACC, first_of_thread, _, _, row_of, store_row = of
    begin_at, ask = minimal_filtering.copies(THREADS, BLOCK_M, BLOCK_N)
    begin, multiply = register_tiles.double_buffered(of, BLOCK_M, BLOCK_N, BLOCK_K, ask)
    BOTH = 2 * BLOCK_K * (BLOCK_M + BLOCK_N)
    SLOT = BLOCK_M * BLOCK_N  # sums of a segment

    @jit(THREADS, BLOCKS_PER_SM)
    @unroll
    def wgrad_stream_k(xs, dys, sums, work):
        tiles = shared_array(BOTH)
        here = cuda.local.array(HERE, uint32)
        a_frag, b_frag = cuda.local.array(A_FRAG, float32), cuda.local.array(B_FRAG, float32)
        acc = cuda.local.array(ACC, float32)
        source = xs, dys
        thread_m, thread_n = first_of_thread()

        # locate: the block's first segment; from then on first, m0 and n0 are of the one whose copies come next
        block, turn = cuda.blockIdx.x, uint32(1)
        segment, first, m0, n0, pairs = segment_of(work, block, 0)
        begin_at(here, first, m0, n0, source)
        _, first, m0, n0, next_pairs = segment_of(work, block, 1)

        # stage: the first pair of tiles
        start = int64(0)
        here[LEFT] = 0
        begin(source, here, tiles, a_frag, b_frag)

        while pairs > 0:
            # locate: copies go on with the next segment; the one behind it is read now, so that nobody waits for it
            begin_at(here, first, m0, n0, source)
            turn = uint32(turn + 1)
            _, first, m0, n0, pairs_behind = segment_of(work, block, turn)

            # multiply: all pairs of the segment; beside the last travels the first of the next
            here[LEFT] = pairs - 1
            start = multiply(int64(pairs), start, source, here, tiles, a_frag, b_frag, acc)

            # store: the sums of the segment, a whole tile
            for i in unrolled(THREAD_M):
                at = int64(segment) * SLOT + (thread_m + row_of(i)) * BLOCK_N + thread_n
                store_row(sums, at, True, 0, BLOCK_N, acc, int64(i), True)
            segment, pairs, next_pairs = uint32(segment + 1), next_pairs, pairs_behind

    return wgrad_stream_k, THREADS


def workspace(problem):
    """What becomes of x and dy, the sums, the tables; or, where the kernel cannot compute, another step's."""
    p = problem
    padded = padded_patches(p.N, p.P, p.Q)
    tile, *tables = plan(p.N, p.P, p.Q, p.K, p.C)
    sums = int(tables[-1][-1]) * tile["BLOCK_M"] * tile["BLOCK_N"]
    fits = filtering.fits(p, p.reduction, filtering.LEAST_SUM) and min(p.P, p.Q) > 1
    if not fits or max(PRODUCTS * padded * max(p.C, p.K), sums) >= 2**32:  # 32-bit offsets reach that far
        return *[None] * 5, minimal_filtering.workspace(problem)
    shapes = (PRODUCTS, padded, p.C), (PRODUCTS, padded, p.K), sums
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
