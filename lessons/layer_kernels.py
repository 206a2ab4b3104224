"""Two kernels that conv2d_layer_dispatch adds to those of the ladder, each for one kind of layer.

They vary the two of conv2d_register_tiled: `hold_pairs` its hold_window (one channel), `hold_sums_minimal` its
hold_sums (many channels).
"""

from functools import lru_cache
from math import gcd

import numpy as np
from numba import cuda, float32, int64, uint32, uint64

from lessons.minimal_filtering import pieces, products, transform
from lessons.unrolled import aligned2, inlined, load2, unroll, unrolled
from lessons.wide import aligned, jit, load4, shared_array, store4

SHARED_FLOATS = 4096  # filter values staged at a time: 16 KiB
MAX_WRITTEN = 1100  # multiply-adds that are written out: more take long to compile and outgrow the instruction cache


def ceil_div(a, b):
    return -(-a // b)


def multiple(a, b):
    """The first multiple of b from a on."""
    return ceil_div(a, b) * b


def numbering(tiles, threads):
    """A device function: which image and which of its tiles this thread of `block` has; no lane is idle.

    Threads are numbered through all tiles of as many images as fill whole blocks. Spare ones repeat the last image.
    """
    GROUP = threads // gcd(tiles, threads)
    GROUP_BLOCKS = GROUP * tiles // threads

    @inlined
    def locate(block, images):
        group = uint32(block) // uint32(GROUP_BLOCKS)
        number = uint32(uint32(block) % uint32(GROUP_BLOCKS) * uint32(threads) + uint32(cuda.threadIdx.x))
        n = min(uint32(group * uint32(GROUP) + number // uint32(tiles)), uint32(images - 1))
        return int64(n), number % uint32(tiles)

    return locate


@inlined
def window_at(pixel, Q, W):
    """Where in an image of width W the window of a pixel of the flattened map starts."""
    return int64(uint32(pixel // uint32(Q) * uint32(W) + pixel % uint32(Q)))


@lru_cache
def hold_pairs(H, W, K, R, S, THREADS, BLOCKS, wide):
    """One channel: 4 neighbours in the flattened map, stored as one 128-bit word.

    They are two pairs, each with a window of its own, because a row may end between them.
    """
    P, Q = H - R + 1, W - S + 1
    PLANE, IMAGE, MAPS = P * Q, H * W, K * P * Q
    TILES = PLANE // 4
    locate = numbering(TILES, THREADS)
    WINDOW_W = S + 1
    WINDOW = R * WINDOW_W
    STEP = 2 if wide and WINDOW_W % 2 == 0 and W % 2 == 0 else 1
    QUADS = ceil_div(R * S, 4)
    PADDED = 4 * QUADS
    FILTER = K * PADDED
    TURNS = ceil_div(FILTER, 4 * THREADS)  # to stage all filters

    @jit(THREADS, BLOCKS)
    @unroll
    def conv2d_hold_pairs(x, packed, y, images):
        tile = shared_array(FILTER)
        quad = cuda.local.array(4, float32)
        left = cuda.local.array(WINDOW, float32)
        right = cuda.local.array(WINDOW, float32)
        weight = cuda.local.array(PADDED, float32)
        acc = cuda.local.array(4, float32)

        # locate
        n, number = locate(cuda.blockIdx.x, images)
        first = uint32(4 * number)
        a = n * IMAGE + window_at(first, Q, W)
        b = n * IMAGE + window_at(uint32(first + 2), Q, W)
        pixel = n * MAPS + int64(first)

        # stage: the windows in registers, the filters in shared memory
        for i in unrolled(R):
            for j in range(0, WINDOW_W, STEP):
                if STEP == 2:
                    load2(left, i * WINDOW_W + j, x, a + i * W + j)
                    load2(right, i * WINDOW_W + j, x, b + i * W + j)
                else:
                    left[i * WINDOW_W + j] = x[uint64(a + i * W + j)]
                    right[i * WINDOW_W + j] = x[uint64(b + i * W + j)]
        for turn in unrolled(TURNS):
            i = 4 * (turn * THREADS + cuda.threadIdx.x)
            if i < FILTER:
                load4(quad, 0, packed, i)
                store4(tile, i, quad, 0)
        cuda.syncthreads()

        at = 0
        while at < FILTER:
            # multiply
            for i in range(QUADS):
                load4(weight, 4 * i, tile, at + 4 * i)
            for i in range(4):
                acc[i] = float32(0.0)
            for r in unrolled(R):
                for s in range(S):
                    for j in range(2):
                        acc[j] += left[r * WINDOW_W + j + s] * weight[r * S + s]
                        acc[2 + j] += right[r * WINDOW_W + j + s] * weight[r * S + s]

            # store
            if wide:
                store4(y, pixel, acc, 0)
            else:
                for i in range(4):
                    y[uint64(pixel + i)] = acc[i]
            pixel += PLANE
            at += PADDED

    return conv2d_hold_pairs, TILES


@lru_cache
def hold_sums_minimal(C, H, W, K, R, S, ROWS, FILTERS, THREADS, BLOCKS):
    """Many channels: hold_sums by minimal filtering down the columns; ROWS is even."""
    P, Q = H - R + 1, W - S + 1
    LAST_P, LAST_K = P - ROWS, K - FILTERS
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
    QUADS = ceil_div(FILTERS, 4)
    PADDED = 4 * QUADS
    COLUMN = PRODUCTS * PADDED  # what the taps that one column of the window meets became
    WRITTEN = S if S * PRODUCTS * PART <= MAX_WRITTEN else 1
    FILTER = C * S * COLUMN
    CHUNK = min(C, max(1, SHARED_FLOATS // (S * COLUMN))) * S * COLUMN  # whole channels, staged at a time

    @inlined
    @unroll
    def multiply_sum(sums, values, tile, at, v, weight, acc):
        """Products of all pairs and filters: `values` is where in v the pairs lie, `sums` where in acc theirs do."""
        for i in unrolled(QUADS):
            load4(weight, 4 * i, tile, at + 4 * i)
        for j in unrolled(PAIRS):
            for f in range(FILTERS):
                acc[sums + j * FILTERS + f] += v[values + j] * weight[f]

    @inlined
    @unroll
    def multiply_column(x, corner, tile, at, d, v, weight, acc):
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
                multiply_sum(int64(m * PART), int64(m * PAIRS), tile, at + (4 * t + m) * PADDED, v, weight, acc)
        for t in unrolled(TWOS):
            for j in range(PAIRS):
                v[j] = d[2 * j + FIRST_TWO + 2 * t] - d[2 * j + FIRST_TWO + 2 * t + 1]
                v[PAIRS + j] = d[2 * j + FIRST_TWO + 2 * t + 1]
                v[2 * PAIRS + j] = d[2 * j + FIRST_TWO + 2 * t + 2] - d[2 * j + FIRST_TWO + 2 * t + 1]
            for m in unrolled(3):
                sums, pairs = int64((m + m // 2) * PART), int64(m * PAIRS)
                multiply_sum(sums, pairs, tile, at + (TWOS_AT + 3 * t + m) * PADDED, v, weight, acc)

    @jit(THREADS, BLOCKS)
    @unroll
    def conv2d_hold_sums_minimal(x, packed, y, images):
        tile = shared_array(CHUNK)
        quad = cuda.local.array(4, float32)
        d = cuda.local.array(WINDOW, float32)
        v = cuda.local.array(VALUES, float32)
        weight = cuda.local.array(PADDED, float32)
        acc = cuda.local.array(ACC, float32)

        # locate: neighbouring blocks share their pixels and differ in their filters
        block = uint32(cuda.blockIdx.x) // uint32(FILTER_GROUPS)
        filters = uint32(cuda.blockIdx.x) % uint32(FILTER_GROUPS)
        n, number = locate(block, images)
        p = min(uint32(number) // uint32(Q) * ROWS, LAST_P)
        q = uint32(number) % uint32(Q)
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
            i = 4 * cuda.threadIdx.x
            while i < size:
                load4(quad, 0, packed, filters * FILTER + chunk + i)
                store4(tile, i, quad, 0)
                i += 4 * THREADS
            cuda.syncthreads()

            # multiply: one column of one channel after the other, piece by piece
            at = 0
            while at < size:
                for _ in range(0, S, WRITTEN):
                    for s in unrolled(WRITTEN):
                        multiply_column(x, corner + s, tile, at + s * COLUMN, d, v, weight, acc)
                    corner += WRITTEN
                    at += WRITTEN * COLUMN
                corner += CHANNEL - S

        # store
        for f in unrolled(FILTERS):
            for j in range(PAIRS):
                b, c = acc[PART + j * FILTERS + f], acc[2 * PART + j * FILTERS + f]
                y[uint64(pixel + f * PLANE + 2 * j * Q)] = acc[j * FILTERS + f] + b + c
                y[uint64(pixel + f * PLANE + (2 * j + 1) * Q)] = acc[3 * PART + j * FILTERS + f] + b - c

    return conv2d_hold_sums_minimal, TILES


def bind_pairs(filt, problem, THREADS, BLOCKS):
    """A function of x and y that runs hold_pairs: C = 1, Q even, P * Q a multiple of 4."""
    K, _, R, S = filt.shape
    packed = np.zeros((K, multiple(R * S, 4)), np.float32)
    packed[:, : R * S] = filt.copy_to_host().reshape(K, R * S)
    packed = cuda.to_device(packed.reshape(-1))

    def run(x, y):
        N, _, H, W = x.shape
        wide = aligned(y.reshape(N * K, y.size // (N * K))) and aligned2(x)
        kernel, tiles = hold_pairs(H, W, K, R, S, THREADS, BLOCKS, wide)
        kernel[ceil_div(N * tiles, THREADS), THREADS](x.reshape(x.size), packed, y.reshape(y.size), N)

    return run


def bind_sums_minimal(filt, problem, ROWS, FILTERS, THREADS, BLOCKS):
    """A function of x and y that runs hold_sums_minimal: R >= 2, ROWS even and at most P, FILTERS at most K."""
    K, C, R, S = filt.shape
    weights = transform(filt.copy_to_host(), axis=2)
    packed = np.zeros((ceil_div(K, FILTERS), C, S, products(R), multiple(FILTERS, 4)), np.float32)
    for group in range(len(packed)):
        k = min(group * FILTERS, K - FILTERS)
        packed[group, ..., :FILTERS] = weights[k : k + FILTERS].transpose(1, 3, 2, 0)
    packed = cuda.to_device(packed.reshape(-1))

    def run(x, y):
        N, _, H, W = x.shape
        kernel, tiles = hold_sums_minimal(C, H, W, K, R, S, ROWS, FILTERS, THREADS, BLOCKS)
        blocks = ceil_div(N * tiles, THREADS) * ceil_div(K, FILTERS)
        kernel[blocks, THREADS](x.reshape(x.size), packed, y.reshape(y.size), N)

    return run
