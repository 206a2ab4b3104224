"""Sums of the 16 products of F(2x2, 3x3) become the nine taps of dfilt: their parts are added up first, in order."""

import importlib
from functools import lru_cache

from numba import cuda, float32, uint32, uint64

from lessons.toolkit.memory import VECTOR, load4_or_zero, shared_array, store4
from lessons.toolkit.tiles import ceil_div
from lessons.toolkit.unroll import unroll, unrolled

filtering = importlib.import_module("lessons.08_training.helpers.filtering")
TAPS, WINDOW, PRODUCTS, dtaps_of = filtering.TAPS, filtering.WINDOW, filtering.PRODUCTS, filtering.dtaps_of

PART_THREADS = 64
ADD = 32  # elements of k and c of whose segments a block adds up
ADD_LANES = ADD // VECTOR  # threads that each product has there
ADD_THREADS = PRODUCTS * ADD_LANES
TOTALS = PRODUCTS * ADD
ON_THE_WAY = 4  # segments that a thread asks for before it adds them


@cuda.jit
@unroll
def add_products(sums, dfilt, splits, C):
    """dfilt[k, 0, r, s, c] from sums[split, product, k, c], both flat: part after part, then the taps of the sums."""
    total = cuda.local.array(PRODUCTS, float32)
    across = cuda.local.array(TAPS * WINDOW, float32)
    size = uint32(dfilt.size // (TAPS * TAPS))
    i = uint32(cuda.grid(1))  # k and c
    if i < size:
        for product in unrolled(PRODUCTS):
            total[product] = float32(0.0)
        for split in range(splits):
            for product in unrolled(PRODUCTS):
                total[product] += sums[uint64(split * PRODUCTS + product) * size + i]
        for s in unrolled(WINDOW):
            g0, g1, g2 = dtaps_of(total[s], total[WINDOW + s], total[2 * WINDOW + s], total[3 * WINDOW + s])
            across[s], across[WINDOW + s], across[2 * WINDOW + s] = g0, g1, g2
        to = uint64(i // uint32(C)) * TAPS * TAPS * C + i % uint32(C)
        for r in unrolled(TAPS):
            row, first = r * WINDOW, uint64(to + r * TAPS * C)
            g0, g1, g2 = dtaps_of(across[row], across[row + 1], across[row + 2], across[row + 3])
            dfilt[first], dfilt[uint64(first + C)], dfilt[uint64(first + 2 * C)] = g0, g1, g2


def add_parts(sums, dfilt):
    """Launch it: dfilt [K, 1, 3, 3, C] from sums [split, product, K, C]."""
    splits, _, K, C = sums.shape
    flat, dflat = sums.reshape(sums.size), dfilt.reshape(dfilt.size)
    add_products[ceil_div(K * C, PART_THREADS), PART_THREADS](flat, dflat, splits, C)


@lru_cache
def adding(BLOCK_M, BLOCK_N):
    """The kernel that adds up segments: sums of BLOCK_M x BLOCK_N elements of a product."""
    SLOT = BLOCK_M * BLOCK_N

    @cuda.jit
    @unroll
    def add_products(sums, dfilt, first_segments, K, C):
        """dfilt[k, 0, r, s, c], flat: the segments of each product in their order, then the taps."""
        totals = shared_array(TOTALS)
        parts = cuda.local.array(ON_THE_WAY * VECTOR, float32)
        total = cuda.local.array(VECTOR, float32)
        across = cuda.local.array(TAPS * WINDOW, float32)
        thread, block = uint32(cuda.threadIdx.x), uint32(cuda.blockIdx.x)
        tiles_of_product = uint32(first_segments.shape[0]) // PRODUCTS  # one number more is the end

        # locate: elements of a tile that each product has, and the segments of the thread's product
        tile, within = block // (SLOT // ADD), block % (SLOT // ADD) * ADD
        product, lane = thread // ADD_LANES, thread % ADD_LANES * VECTOR
        tile_of_all = product * tiles_of_product + tile
        segment, end = first_segments[tile_of_all], first_segments[tile_of_all + 1]

        # stage: the totals of all products
        for v in unrolled(VECTOR):
            total[v] = float32(0.0)
        while segment < end:
            for turn in unrolled(ON_THE_WAY):
                at = uint32((segment + turn) * SLOT + within + lane)
                load4_or_zero(parts, turn * VECTOR, sums, at, segment + turn < end)
            for turn in unrolled(ON_THE_WAY):
                for v in unrolled(VECTOR):
                    total[v] += parts[turn * VECTOR + v]
            segment = uint32(segment + ON_THE_WAY)
        store4(totals, product * ADD + lane, total, 0)
        cuda.syncthreads()

        # store: the taps of one element
        if thread < ADD:
            blocks_m = uint32((K + BLOCK_M - 1) // BLOCK_M)
            k = tile % blocks_m * BLOCK_M + (within + thread) // BLOCK_N
            c = tile // blocks_m * BLOCK_N + (within + thread) % BLOCK_N
            if k < K and c < C:
                for s in unrolled(WINDOW):
                    m0, m1 = totals[s * ADD + thread], totals[(WINDOW + s) * ADD + thread]
                    m2, m3 = totals[(2 * WINDOW + s) * ADD + thread], totals[(3 * WINDOW + s) * ADD + thread]
                    across[s], across[WINDOW + s], across[2 * WINDOW + s] = dtaps_of(m0, m1, m2, m3)
                to = uint64(k) * TAPS * TAPS * C + c
                for r in unrolled(TAPS):
                    row, at = r * WINDOW, uint64(to + r * TAPS * C)
                    g0, g1, g2 = dtaps_of(across[row], across[row + 1], across[row + 2], across[row + 3])
                    dfilt[at], dfilt[uint64(at + C)], dfilt[uint64(at + 2 * C)] = g0, g1, g2

    return add_products


def add_segments(sums, dfilt, first_segments, BLOCK_M, BLOCK_N):
    """Launch it: tile t of the products, counted one after another, has segments first_segments[t] to [t + 1]."""
    K, C = dfilt.shape[0], dfilt.shape[4]
    blocks = first_segments.size // PRODUCTS * BLOCK_M * BLOCK_N // ADD
    adding(BLOCK_M, BLOCK_N)[blocks, ADD_THREADS](sums, dfilt.reshape(dfilt.size), first_segments, K, C)
