"""Minimal filtering: two outputs of a filter of 3 taps by 4 multiplications instead of 6 (Winograd 1980, F(2, 3)).

For inputs d0..d3 and taps g0..g2, the outputs y0 = d0 g0 + d1 g1 + d2 g2 and y1 = d1 g0 + d2 g1 + d3 g2 are

    y0 = a + b + c     a = (d0 - d2) g0    b = (d1 + d2) (g0 + g1 + g2) / 2
    y1 = b - c + d     d = (d3 - d1) g2    c = (d2 - d1) (g0 - g1 + g2) / 2

and for 2 taps by 3 multiplications instead of 4:

    y0 = a + b         a = (d0 - d1) g0    b = d1 (g0 + g1)
    y1 = b + d         d = (d2 - d1) g1

A longer filter is cut into pieces of 3 and 2 taps, whose a, b, c and d are summed. What becomes of the taps is
computed once, on the host. What becomes of the inputs serves all filters. Halves of integers are exact in float32.

The kernel is that of conv2d_register_tiled (lesson 04), filtering down the columns. It holds four sums for each pair
of pixels, a to d, so its multiplication and its store are others; cutting, numbering and staging are shared. R and
ROWS are at least 2, ROWS is even and at most P, FILTERS at most K. The interface is that of a step.
"""

from functools import lru_cache

import numpy as np
from numba import cuda, float32, int64, uint32, uint64

from lessons.toolkit.grid import jit
from lessons.toolkit.memory import VECTOR, load4, shared_array
from lessons.toolkit.tiles import by_groups, ceil_div, multiple, numbering, padded, stage_chunk
from lessons.toolkit.unroll import inlined, unroll, unrolled

STAGED = 4096  # floats of the filter in shared memory at a time
MOST_WRITTEN = 1100  # multiply-adds that are written out: more compile long and outgrow the instruction cache


def pieces(taps):
    """How many pieces of 3 and of 2 taps a filter of `taps` >= 2 is cut into, the threes first."""
    twos = (0, 2, 1)[taps % 3]
    return (taps - 2 * twos) // 3, twos


def products(taps):
    """Multiplications for two outputs, where 2 * taps would be the definition's."""
    threes, twos = pieces(taps)
    return 4 * threes + 3 * twos


def transform(filt):
    """What the rows of K x C x R x S taps become: a, b, c, d of each piece of three, then a, b, d of each of two."""
    taps = np.moveaxis(filt, 2, 0)
    threes, twos = pieces(len(taps))
    out = []
    for i in range(threes):
        g0, g1, g2 = taps[3 * i : 3 * i + 3]
        out += [g0, (g0 + g1 + g2) / 2, (g0 - g1 + g2) / 2, g2]
    for i in range(twos):
        g0, g1 = taps[3 * threes + 2 * i : 3 * threes + 2 * i + 2]
        out += [g0, g0 + g1, g1]
    return np.stack(out, axis=2).astype(np.float32)


@lru_cache
def specialise(C, H, W, K, R, S, ROWS, FILTERS, THREADS, BLOCKS):
    """The kernel for K filters of C x R x S taps and images of H x W, and the number of tiles in an image."""
    P, Q = H - R + 1, W - S + 1
    LAST_P, LAST_K = P - ROWS, K - FILTERS
    LOWEST, AGAIN = Q * (P // ROWS), -P % ROWS  # the first of the lowest tiles; rows that those above have, too
    TILES = Q * ceil_div(P, ROWS)
    locate = numbering(TILES, THREADS)
    FILTER_GROUPS = ceil_div(K, FILTERS)
    THREES, TWOS = pieces(R)
    PRODUCTS = products(R)
    FIRST_TWO, TWOS_AT = 3 * THREES, 4 * THREES
    WINDOW, PAIRS = ROWS + R - 1, ROWS // 2
    PART = PAIRS * FILTERS
    ACC, VALUES = 4 * PART, 4 * PAIRS
    CHANNEL, PLANE = H * W, P * Q
    ROW_TAPS = multiple(FILTERS, VECTOR)  # padded so that 128-bit reads are aligned
    COLUMN = PRODUCTS * ROW_TAPS  # what the taps that one column of the window meets became
    WRITTEN = S if S * PRODUCTS * PART <= MOST_WRITTEN else 1
    FILTER = C * S * COLUMN
    CHUNK = min(C, max(1, STAGED // (S * COLUMN))) * S * COLUMN  # whole channels, staged at a time

    @inlined
    @unroll
    def multiply_sum(sums, values, tile, at, v, taps, acc):
        """Products of all pairs and filters: `values` is where in v the pairs lie, `sums` where in acc theirs do."""
        for i in range(0, FILTERS, VECTOR):
            load4(taps, i, tile, at + i)
        for j in unrolled(PAIRS):
            for f in range(FILTERS):
                acc[sums + j * FILTERS + f] += v[values + j] * taps[f]

    @inlined
    @unroll
    def multiply_column(x, corner, tile, at, d, v, taps, acc):
        """One column of the window, piece by piece."""
        for h in range(WINDOW):
            d[h] = x[uint64(corner + h * W)]
        for t in unrolled(THREES):
            for j in range(PAIRS):
                v[j] = d[2 * j + 3 * t] - d[2 * j + 3 * t + 2]
                v[PAIRS + j] = d[2 * j + 3 * t + 1] + d[2 * j + 3 * t + 2]
                v[2 * PAIRS + j] = d[2 * j + 3 * t + 2] - d[2 * j + 3 * t + 1]
                v[3 * PAIRS + j] = d[2 * j + 3 * t + 3] - d[2 * j + 3 * t + 1]
            for m in unrolled(4):
                multiply_sum(int64(m * PART), int64(m * PAIRS), tile, at + (4 * t + m) * ROW_TAPS, v, taps, acc)
        for t in unrolled(TWOS):
            for j in range(PAIRS):
                v[j] = d[2 * j + FIRST_TWO + 2 * t] - d[2 * j + FIRST_TWO + 2 * t + 1]
                v[PAIRS + j] = d[2 * j + FIRST_TWO + 2 * t + 1]
                v[2 * PAIRS + j] = d[2 * j + FIRST_TWO + 2 * t + 2] - d[2 * j + FIRST_TWO + 2 * t + 1]
            for m in unrolled(3):
                sums, pairs = int64((m + m // 2) * PART), int64(m * PAIRS)
                multiply_sum(sums, pairs, tile, at + (TWOS_AT + 3 * t + m) * ROW_TAPS, v, taps, acc)

    @jit(THREADS, BLOCKS)
    @unroll
    def conv2d_minimal_filtering(x, packed, y, images):
        tile = shared_array(CHUNK)
        d, v = cuda.local.array(WINDOW, float32), cuda.local.array(VALUES, float32)
        taps, acc = cuda.local.array(ROW_TAPS, float32), cuda.local.array(ACC, float32)

        # locate: neighbouring blocks share their pixels and differ in their filters
        block = uint32(cuda.blockIdx.x) // uint32(FILTER_GROUPS)
        filters = uint32(cuda.blockIdx.x) % uint32(FILTER_GROUPS)
        n, number = locate(block, images)
        p = min(number // uint32(Q) * ROWS, LAST_P)
        q = number % uint32(Q)
        k = min(filters * FILTERS, LAST_K)
        corner = n * C * CHANNEL + p * W + q
        pixel = n * K * PLANE + k * PLANE + p * Q + q

        for i in range(ACC):
            acc[i] = float32(0.0)
        for chunk in range(0, FILTER, CHUNK):
            # stage
            if chunk > 0:
                cuda.syncthreads()
            size = min(CHUNK, FILTER - chunk)
            stage_chunk(tile, packed, filters * FILTER + chunk, size, THREADS)
            cuda.syncthreads()

            # multiply: one column of one channel after the other, piece by piece
            at = 0
            while at < size:
                for _ in range(0, S, WRITTEN):
                    for s in unrolled(WRITTEN):
                        multiply_column(x, corner + s, tile, at + s * COLUMN, d, v, taps, acc)
                    corner += WRITTEN
                    at += WRITTEN * COLUMN
                corner += CHANNEL - S

        # store, but for what the tile above stores: rounded in another way, where it is the other one of a pair there
        _, number = locate(block, images)
        again = AGAIN if number >= LOWEST else 0
        for f in unrolled(FILTERS):
            for j in range(PAIRS):
                b, c = acc[PART + j * FILTERS + f], acc[2 * PART + j * FILTERS + f]
                if 2 * j >= again:
                    y[uint64(pixel + f * PLANE + 2 * j * Q)] = acc[j * FILTERS + f] + b + c
                if 2 * j + 1 >= again:
                    y[uint64(pixel + f * PLANE + (2 * j + 1) * Q)] = acc[3 * PART + j * FILTERS + f] + b - c

    return conv2d_minimal_filtering, TILES


def prepare(filt, problem, FILTERS, **tile):
    """What the taps become, in the order of use: by group of FILTERS, channel, column and product."""
    return padded(by_groups(transform(filt.copy_to_host()).transpose(1, 3, 2, 0), FILTERS))


def launch(x, packed, y, ROWS, FILTERS, THREADS, BLOCKS):
    N, C, H, W = x.shape
    K, P, Q = y.shape[1:]
    kernel, tiles = specialise(C, H, W, K, H - P + 1, W - Q + 1, ROWS, FILTERS, THREADS, BLOCKS)
    blocks = ceil_div(N * tiles, THREADS) * ceil_div(K, FILTERS)
    kernel[blocks, THREADS](x.reshape(x.size), packed, y.reshape(y.size), N)
