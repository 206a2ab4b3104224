"""Kernels for one kind of layer each, among which conv2d_layer_dispatch chooses.

They vary the two of conv2d_register_tiled: what stays in registers is the window (one channel) or the sums (many).
"""

from functools import lru_cache
from math import gcd

import numpy as np
from numba import cuda, float32, int64, uint32, uint64

from lessons.minimal_filtering import pieces, products, transform
from lessons.unrolled import load2, store2, unroll, unrolled
from lessons.wide import jit, load4, shared_array, store4

store4_y, store2_y = store4, store2
SHARED_FLOATS = 4096  # filter values staged at a time: 16 KiB


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

    @cuda.jit(device=True, inline="always")
    def locate(block, images):
        group = uint32(block) // uint32(GROUP_BLOCKS)
        number = uint32(uint32(block) % uint32(GROUP_BLOCKS) * uint32(threads) + uint32(cuda.threadIdx.x))
        n = min(uint32(group * uint32(GROUP) + number // uint32(tiles)), uint32(images - 1))
        return int64(n), number % uint32(tiles)

    return locate


@cuda.jit(device=True, inline="always")
def window_at(pixel, Q, W):
    """Where in an image of width W the window of a pixel of the flattened map starts."""
    return int64(uint32(pixel // uint32(Q) * uint32(W) + pixel % uint32(Q)))


@cuda.jit(device=True, inline="always")
def stage4(tile, packed, first, size, threads):
    """tile[:size] = packed[first:first+size], by all threads of the block."""
    quad = cuda.local.array(4, float32)
    i = 4 * cuda.threadIdx.x
    while i < size:
        load4(quad, 0, packed, first + i)
        store4(tile, i, quad, 0)
        i += 4 * threads


def pack_rows(weights):
    """(K, rows, columns) to one padded row of K, so that every filter starts on a 16-byte boundary."""
    K = len(weights)
    flat = weights.reshape(K, -1)
    packed = np.zeros((K, multiple(flat.shape[1], 4)), np.float32)
    packed[:, : flat.shape[1]] = flat
    return packed.reshape(-1)


def pack_columns(weights, filters):
    """(K, C, rows, S) to (groups of filters, C, S, rows, filters padded to 4)."""
    K, C, rows, S = weights.shape
    packed = np.zeros((ceil_div(K, filters), C, S, rows, multiple(filters, 4)), np.float32)
    for group in range(len(packed)):
        k = min(group * filters, K - filters)
        packed[group, ..., :filters] = weights[k : k + filters].transpose(1, 3, 2, 0)
    return packed.reshape(-1)


@lru_cache
def hold_pairs(H, W, K, R, S, FILTERS, THREADS, BLOCKS, wide):
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
            for f in unrolled(FILTERS):
                # multiply
                for i in range(QUADS):
                    load4(weight, 4 * i, tile, at + f * PADDED + 4 * i)
                for i in range(4):
                    acc[i] = float32(0.0)
                for r in unrolled(R):
                    for s in range(S):
                        for j in range(2):
                            acc[j] += left[r * WINDOW_W + j + s] * weight[r * S + s]
                            acc[2 + j] += right[r * WINDOW_W + j + s] * weight[r * S + s]

                # store
                if wide:
                    store4_y(y, pixel + f * PLANE, acc, 0)
                else:
                    for i in range(4):
                        y[uint64(pixel + f * PLANE + i)] = acc[i]
            pixel += FILTERS * PLANE
            at += FILTERS * PADDED

    return conv2d_hold_pairs, TILES


@lru_cache
def hold_pairs_minimal(H, W, K, R, S, FILTERS, THREADS, BLOCKS, wide):
    """hold_pairs by minimal filtering along the rows: the two outputs of a pair share their products."""
    P, Q = H - R + 1, W - S + 1
    PLANE, IMAGE, MAPS = P * Q, H * W, K * P * Q
    TILES = PLANE // 4
    locate = numbering(TILES, THREADS)
    THREES, TWOS = pieces(S)
    PRODUCTS = products(S)
    FIRST_TWO, TWOS_AT = 3 * THREES, 4 * THREES
    WINDOW_W = S + 1
    VALUES = R * PRODUCTS
    RIGHT = VALUES
    ALL_VALUES = 2 * VALUES
    STEP = 2 if wide and WINDOW_W % 2 == 0 and W % 2 == 0 else 1
    QUADS = ceil_div(VALUES, 4)
    PADDED = 4 * QUADS
    FILTER = K * PADDED
    TURNS = ceil_div(FILTER, 4 * THREADS)  # to stage all filters

    @jit(THREADS, BLOCKS)
    @unroll
    def conv2d_hold_pairs_minimal(x, packed, y, images):
        tile = shared_array(FILTER)
        quad = cuda.local.array(4, float32)
        d = cuda.local.array(WINDOW_W, float32)
        v = cuda.local.array(ALL_VALUES, float32)
        weight = cuda.local.array(PADDED, float32)
        acc = cuda.local.array(8, float32)
        out = cuda.local.array(4, float32)

        # locate
        n, number = locate(cuda.blockIdx.x, images)
        first = uint32(4 * number)
        pixel = n * MAPS + int64(first)

        # stage: what the windows become in registers, what the filters became in shared memory
        for pair in unrolled(2):
            corner = n * IMAGE + window_at(uint32(first + 2 * pair), Q, W)
            for i in unrolled(R):
                for j in range(0, WINDOW_W, STEP):
                    if STEP == 2:
                        load2(d, j, x, corner + i * W + j)
                    else:
                        d[j] = x[uint64(corner + i * W + j)]
                for t in unrolled(THREES):
                    v[pair * RIGHT + i * PRODUCTS + 4 * t] = d[3 * t] - d[3 * t + 2]
                    v[pair * RIGHT + i * PRODUCTS + 4 * t + 1] = d[3 * t + 1] + d[3 * t + 2]
                    v[pair * RIGHT + i * PRODUCTS + 4 * t + 2] = d[3 * t + 2] - d[3 * t + 1]
                    v[pair * RIGHT + i * PRODUCTS + 4 * t + 3] = d[3 * t + 3] - d[3 * t + 1]
                for t in unrolled(TWOS):
                    v[pair * RIGHT + i * PRODUCTS + TWOS_AT + 3 * t] = d[FIRST_TWO + 2 * t] - d[FIRST_TWO + 2 * t + 1]
                    v[pair * RIGHT + i * PRODUCTS + TWOS_AT + 3 * t + 1] = d[FIRST_TWO + 2 * t + 1]
                    v[pair * RIGHT + i * PRODUCTS + TWOS_AT + 3 * t + 2] = (
                        d[FIRST_TWO + 2 * t + 2] - d[FIRST_TWO + 2 * t + 1]
                    )
        for turn in unrolled(TURNS):
            i = 4 * (turn * THREADS + cuda.threadIdx.x)
            if i < FILTER:
                load4(quad, 0, packed, i)
                store4(tile, i, quad, 0)
        cuda.syncthreads()

        at = 0
        while at < FILTER:
            for f in unrolled(FILTERS):
                # multiply: a, b, c, d of the left pair, then of the right
                for i in range(QUADS):
                    load4(weight, 4 * i, tile, at + f * PADDED + 4 * i)
                for i in range(8):
                    acc[i] = float32(0.0)
                for i in unrolled(R):
                    for m in unrolled(4 * THREES):
                        for pair in unrolled(2):
                            acc[4 * pair + m % 4] += v[pair * RIGHT + i * PRODUCTS + m] * weight[i * PRODUCTS + m]
                    for m in unrolled(3 * TWOS):
                        for pair in unrolled(2):
                            acc[4 * pair + m % 3 + m % 3 // 2] += (
                                v[pair * RIGHT + i * PRODUCTS + TWOS_AT + m] * weight[i * PRODUCTS + TWOS_AT + m]
                            )

                # store
                for pair in unrolled(2):
                    out[2 * pair] = acc[4 * pair] + acc[4 * pair + 1] + acc[4 * pair + 2]
                    out[2 * pair + 1] = acc[4 * pair + 3] + acc[4 * pair + 1] - acc[4 * pair + 2]
                if wide:
                    store4_y(y, pixel + f * PLANE, out, 0)
                else:
                    for i in range(4):
                        y[uint64(pixel + f * PLANE + i)] = out[i]
            pixel += FILTERS * PLANE
            at += FILTERS * PADDED

    return conv2d_hold_pairs_minimal, TILES


@lru_cache
def hold_window_minimal(H, W, K, R, S, FILTERS, THREADS, BLOCKS, paired):
    """One channel: hold_window's 2 x 2 pixels by minimal filtering down the columns."""
    P, Q = H - R + 1, W - S + 1
    LAST_P, LAST_Q = P - 2, Q - 2
    TILES_Q = ceil_div(Q, 2)
    TILES = ceil_div(P, 2) * TILES_Q
    locate = numbering(TILES, THREADS)
    THREES, TWOS = pieces(R)
    PRODUCTS = products(R)
    FIRST_TWO, TWOS_AT = 3 * THREES, 4 * THREES
    WINDOW_H, WINDOW_W = R + 1, S + 1
    VALUES = WINDOW_W * PRODUCTS
    PLANE, IMAGE, MAPS = P * Q, H * W, K * P * Q
    STEP = 2 if paired and WINDOW_W % 2 == 0 else 1
    STEPS, COLUMNS = WINDOW_W // STEP, STEP * WINDOW_H
    QUADS = ceil_div(S * PRODUCTS, 4)
    PADDED = 4 * QUADS
    FILTER = K * PADDED
    TURNS = ceil_div(FILTER, 4 * THREADS)  # to stage all filters

    @jit(THREADS, BLOCKS)
    @unroll
    def conv2d_hold_window_minimal(x, packed, y, images):
        tile = shared_array(FILTER)
        quad = cuda.local.array(4, float32)
        d = cuda.local.array(COLUMNS, float32)
        v = cuda.local.array(VALUES, float32)
        weight = cuda.local.array(PADDED, float32)
        acc = cuda.local.array(8, float32)
        out = cuda.local.array(4, float32)

        # locate
        n, number = locate(cuda.blockIdx.x, images)
        p = min(uint32(number // uint32(TILES_Q) * uint32(2)), uint32(LAST_P))
        q = min(uint32(number % uint32(TILES_Q) * uint32(2)), uint32(LAST_Q))
        corner = n * IMAGE + int64(uint32(p * uint32(W) + q))
        pixel = n * MAPS + int64(uint32(p * uint32(Q) + q))

        # stage: what the window becomes in registers, what the filters became in shared memory
        for step in unrolled(STEPS):
            for h in unrolled(WINDOW_H):
                if STEP == 2:
                    load2(d, h * STEP, x, corner + h * W + step * STEP)
                else:
                    d[h * STEP] = x[uint64(corner + h * W + step * STEP)]
            for e in unrolled(STEP):
                for t in unrolled(THREES):
                    at = (step * STEP + e) * PRODUCTS + 4 * t
                    h = 3 * t
                    v[at] = d[h * STEP + e] - d[(h + 2) * STEP + e]
                    v[at + 1] = d[(h + 1) * STEP + e] + d[(h + 2) * STEP + e]
                    v[at + 2] = d[(h + 2) * STEP + e] - d[(h + 1) * STEP + e]
                    v[at + 3] = d[(h + 3) * STEP + e] - d[(h + 1) * STEP + e]
                for t in unrolled(TWOS):
                    at = (step * STEP + e) * PRODUCTS + TWOS_AT + 3 * t
                    h = FIRST_TWO + 2 * t
                    v[at] = d[h * STEP + e] - d[(h + 1) * STEP + e]
                    v[at + 1] = d[(h + 1) * STEP + e]
                    v[at + 2] = d[(h + 2) * STEP + e] - d[(h + 1) * STEP + e]
        for turn in unrolled(TURNS):
            i = 4 * (turn * THREADS + cuda.threadIdx.x)
            if i < FILTER:
                load4(quad, 0, packed, i)
                store4(tile, i, quad, 0)
        cuda.syncthreads()

        at = 0
        while at < FILTER:
            for f in unrolled(FILTERS):
                # multiply
                for i in range(QUADS):
                    load4(weight, 4 * i, tile, at + f * PADDED + 4 * i)
                for i in range(8):
                    acc[i] = float32(0.0)
                for s in unrolled(S):
                    for m in unrolled(4 * THREES):
                        for j in unrolled(2):
                            acc[4 * j + m % 4] += v[(s + j) * PRODUCTS + m] * weight[s * PRODUCTS + m]
                    for m in unrolled(3 * TWOS):
                        for j in unrolled(2):
                            acc[4 * j + m % 3 + m % 3 // 2] += (
                                v[(s + j) * PRODUCTS + TWOS_AT + m] * weight[s * PRODUCTS + TWOS_AT + m]
                            )

                # store
                for j in unrolled(2):
                    out[j] = acc[4 * j] + acc[4 * j + 1] + acc[4 * j + 2]
                    out[2 + j] = acc[4 * j + 3] + acc[4 * j + 1] - acc[4 * j + 2]
                for i in unrolled(2):
                    if paired:
                        store2_y(y, pixel + f * PLANE + i * Q, out, 2 * i)
                    else:
                        for j in unrolled(2):
                            y[uint64(pixel + f * PLANE + i * Q + j)] = out[2 * i + j]
            pixel += FILTERS * PLANE
            at += FILTERS * PADDED

    return conv2d_hold_window_minimal, TILES


@lru_cache
def hold_sums_minimal(C, H, W, K, R, S, ROWS, FILTERS, THREADS, BLOCKS, WRITTEN=1):
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
    FILTER = C * S * COLUMN
    CHUNK = min(C, max(1, SHARED_FLOATS // (S * COLUMN))) * S * COLUMN  # whole channels, staged at a time

    @jit(THREADS, BLOCKS)
    @unroll
    def conv2d_hold_sums_minimal(x, packed, y, images):
        tile = shared_array(CHUNK)
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
            stage4(tile, packed, filters * FILTER + chunk, size, THREADS)
            cuda.syncthreads()

            # multiply: one column of one channel after the other, piece by piece
            at = 0
            while at < size:
                for _ in range(0, S, WRITTEN):
                    for s in unrolled(WRITTEN):
                        for h in range(WINDOW):
                            d[h] = x[uint64(corner + h * W + s)]
                        for t in unrolled(THREES):
                            for j in range(PAIRS):
                                v[j] = d[2 * j + 3 * t] - d[2 * j + 3 * t + 2]
                                v[PAIRS + j] = d[2 * j + 3 * t + 1] + d[2 * j + 3 * t + 2]
                                v[2 * PAIRS + j] = d[2 * j + 3 * t + 2] - d[2 * j + 3 * t + 1]
                                v[3 * PAIRS + j] = d[2 * j + 3 * t + 3] - d[2 * j + 3 * t + 1]
                            for m in unrolled(4):
                                for i in unrolled(QUADS):
                                    load4(weight, 4 * i, tile, at + s * COLUMN + (4 * t + m) * PADDED + 4 * i)
                                for j in unrolled(PAIRS):
                                    for f in range(FILTERS):
                                        acc[m * PART + j * FILTERS + f] += v[m * PAIRS + j] * weight[f]
                        for t in unrolled(TWOS):
                            for j in range(PAIRS):
                                v[j] = d[2 * j + FIRST_TWO + 2 * t] - d[2 * j + FIRST_TWO + 2 * t + 1]
                                v[PAIRS + j] = d[2 * j + FIRST_TWO + 2 * t + 1]
                                v[2 * PAIRS + j] = d[2 * j + FIRST_TWO + 2 * t + 2] - d[2 * j + FIRST_TWO + 2 * t + 1]
                            for m in unrolled(3):
                                for i in unrolled(QUADS):
                                    load4(
                                        weight, 4 * i, tile, at + s * COLUMN + (TWOS_AT + 3 * t + m) * PADDED + 4 * i
                                    )
                                for j in unrolled(PAIRS):
                                    for f in range(FILTERS):
                                        acc[(m + m // 2) * PART + j * FILTERS + f] += v[m * PAIRS + j] * weight[f]
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
