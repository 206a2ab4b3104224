"""conv2d_register_tiled: what is used most stays in registers, the filter streams from shared memory.

Previous step: conv2d_coarsened
New idea: registers are the fastest memory, so they hold whatever is used longest. With many channels these are the
    sums of a ROWS x FILTERS tile of outputs, and the channels stream past; with one channel it is the window of
    ROWS x COLS pixels, and the filters stream past. Either way the filter lies in shared memory in the order of
    use, so that one 128-bit read brings four taps, and each tap serves every pixel of the tile.
Loads per FMA: many channels, 10 x 8 outputs, 5 x 5 taps: (14 + 10) / 400 = 0.06; one channel, 2 x 2 outputs,
    12 filters: (18 + 84) / 1200 = 0.09, of which 84 are 128 bits wide and shared.
Run: python -m lessons.04_register_blocking conv2d_register_tiled
"""

from functools import lru_cache
from math import gcd

import numpy as np
from numba import cuda, float32, uint32, uint64

from lessons.unrolled import aligned2, load2, store2, unroll, unrolled
from lessons.wide import jit, load4, shared_array, store4

# one channel: a thread computes ROWS x COLS pixels of all maps, FILTERS maps per turn of the loop
ONE = {"ROWS": 2, "COLS": 2, "FILTERS": 6, "THREADS": 256, "BLOCKS": 4}
# many channels: a thread computes ROWS pixels below each other in each of FILTERS maps
MANY = {"ROWS": 10, "FILTERS": 8, "THREADS": 128, "BLOCKS": 4}
TUNABLES = {
    "ROWS": (2, 3, 6, 10),
    "FILTERS": (2, 4, 6, 8, 12),
}
SHARED_FLOATS = 4096  # filter values staged at a time: 16 KiB
MAX_WINDOW = 80  # registers that a thread spends on its pixels
MAX_TAPS, MAX_R = 7 * 7, 11  # larger filters outgrow the instruction cache once written out
REGISTERS = 65536  # of a multiprocessor


def plan(C, H, W, K, R, S, **tile):
    """The kernel for a shape, "one", "many" or "any", and its constants: the tile asked for, cut to fit the shape."""
    P, Q = H - R + 1, W - S + 1
    one, many = {**ONE, **tile}, {**MANY, **tile}
    for name, value in tile.items():
        if name not in one or value < 1:
            raise ValueError(f"{name}={value} must be one of {', '.join(ONE)} and at least 1")
    if R * S > MAX_TAPS or R > MAX_R or P * Q * many["THREADS"] >= 2**32:  # tiles are numbered in 32 bits
        return "any", {}
    one.update(ROWS=even(P, one["ROWS"]), COLS=min(Q, one["COLS"]))
    window = (one["ROWS"] + R - 1) * (one["COLS"] + S - 1)
    if C == 1 and window <= MAX_WINDOW and K * multiple(R * S, 4) <= SHARED_FLOATS:
        one["FILTERS"] = max(filters for filters in range(1, one["FILTERS"] + 1) if K % filters == 0)
        return "one", within_registers(one, window + 22)
    many.update(ROWS=even(P, many["ROWS"]), FILTERS=min(K, many["FILTERS"]))
    many.pop("COLS", None)
    return "many", within_registers(many, many["ROWS"] * many["FILTERS"] + many["ROWS"] + R + 15)


def shipped(problem):
    """The tile that the problem runs with unless another is asked for."""
    return plan(problem.C, problem.H, problem.W, problem.K, problem.R, problem.S)[1]


def ceil_div(a, b):
    return -(-a // b)


def multiple(a, b):
    """The first multiple of b from a on."""
    return ceil_div(a, b) * b


def even(extent, tile):
    """The tile, at most `tile`, that cuts `extent` most evenly: 29 rows into 10 + 10 + 9, 20 rows by 10."""
    return ceil_div(extent, ceil_div(extent, tile))


def within_registers(tile, registers):
    if tile["THREADS"] > 1024 or registers > 255 or tile["THREADS"] * registers > REGISTERS:
        raise ValueError(
            f"ROWS={tile['ROWS']} FILTERS={tile['FILTERS']} take about {registers} registers in each of "
            f"THREADS={tile['THREADS']} threads: a thread has 255, a multiprocessor {REGISTERS}"
        )
    return {**tile, "BLOCKS": max(1, min(tile["BLOCKS"], REGISTERS // (tile["THREADS"] * registers)))}


@lru_cache
def hold_window(H, W, K, R, S, ROWS, COLS, FILTERS, THREADS, BLOCKS, paired):
    """One input channel: the window stays in registers, the filters stream past. Returns kernel, tiles per image."""
    P, Q = H - R + 1, W - S + 1
    LAST_P, LAST_Q = P - ROWS, Q - COLS  # the last tile moves back over its neighbour, so no store needs a guard
    TILES_Q = ceil_div(Q, COLS)
    TILES = ceil_div(P, ROWS) * TILES_Q
    # threads are numbered through all tiles of GROUP images, which fill GROUP_BLOCKS blocks exactly: no idle lane
    GROUP = THREADS // gcd(TILES, THREADS)
    GROUP_BLOCKS = GROUP * TILES // THREADS
    WINDOW_H, WINDOW_W = ROWS + R - 1, COLS + S - 1
    WINDOW, ACC = WINDOW_H * WINDOW_W, ROWS * COLS
    IMAGE, PLANE = H * W, P * Q
    QUADS = ceil_div(R * S, 4)
    PADDED = 4 * QUADS  # a filter starts on a 16-byte boundary
    FILTER = K * PADDED
    TURNS = ceil_div(FILTER, 4 * THREADS)  # to stage all filters
    STEP = 2 if paired and WINDOW_W % 2 == 0 else 1
    PAIRED = paired and COLS == 2

    @jit(THREADS, BLOCKS)
    @unroll
    def conv2d_hold_window(x, packed, y, images):
        tile = shared_array(FILTER)
        quad = cuda.local.array(4, float32)
        window = cuda.local.array(WINDOW, float32)
        weight = cuda.local.array(PADDED, float32)
        acc = cuda.local.array(ACC, float32)

        # locate
        group = uint32(cuda.blockIdx.x) // uint32(GROUP_BLOCKS)
        number = (cuda.blockIdx.x - group * GROUP_BLOCKS) * THREADS + cuda.threadIdx.x
        image, number = uint32(number) // uint32(TILES), uint32(number) % uint32(TILES)
        p = min(uint32(number) // uint32(TILES_Q) * ROWS, LAST_P)
        q = min(uint32(number) % uint32(TILES_Q) * COLS, LAST_Q)
        n = min(group * GROUP + image, images - 1)  # spare threads repeat the last image
        corner = n * IMAGE + p * W + q
        pixel = n * K * PLANE + p * Q + q

        # stage: the window in registers, the filters in shared memory
        for i in unrolled(WINDOW_H):
            for j in range(0, WINDOW_W, STEP):
                if STEP == 2:
                    load2(window, i * WINDOW_W + j, x, corner + i * W + j)
                else:
                    window[i * WINDOW_W + j] = x[uint64(corner + i * W + j)]
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
                for i in range(ACC):
                    acc[i] = float32(0.0)
                for r in unrolled(R):
                    for s in range(S):
                        for i in range(ROWS):
                            for j in range(COLS):
                                acc[i * COLS + j] += window[(i + r) * WINDOW_W + j + s] * weight[r * S + s]

                # store
                for i in range(ROWS):
                    if PAIRED:
                        store2(y, pixel + f * PLANE + i * Q, acc, 2 * i)
                    else:
                        for j in range(COLS):
                            y[uint64(pixel + f * PLANE + i * Q + j)] = acc[i * COLS + j]
            pixel += FILTERS * PLANE
            at += FILTERS * PADDED

    return conv2d_hold_window, TILES


@lru_cache
def hold_sums(C, H, W, K, R, S, ROWS, FILTERS, THREADS, BLOCKS):
    """Many input channels: the sums stay in registers, the channels stream past. Returns kernel, tiles per image."""
    P, Q = H - R + 1, W - S + 1
    LAST_P, LAST_K = P - ROWS, K - FILTERS
    TILES = Q * ceil_div(P, ROWS)
    GROUP = THREADS // gcd(TILES, THREADS)
    GROUP_BLOCKS = GROUP * TILES // THREADS
    FILTER_GROUPS = ceil_div(K, FILTERS)
    WINDOW, ACC = ROWS + R - 1, ROWS * FILTERS
    CHANNEL, PLANE = H * W, P * Q
    QUADS = ceil_div(FILTERS, 4)
    PADDED = 4 * QUADS
    COLUMN = R * PADDED  # the taps that one column of the window meets
    FILTER = C * S * COLUMN
    CHUNK = min(C, max(1, SHARED_FLOATS // (S * COLUMN))) * S * COLUMN  # whole channels, staged at a time

    @jit(THREADS, BLOCKS)
    @unroll
    def conv2d_hold_sums(x, packed, y, images):
        tile = shared_array(CHUNK)
        quad = cuda.local.array(4, float32)
        window = cuda.local.array(WINDOW, float32)
        weight = cuda.local.array(PADDED, float32)
        acc = cuda.local.array(ACC, float32)

        # locate: neighbouring blocks share their pixels and differ in their filters
        block = uint32(cuda.blockIdx.x) // uint32(FILTER_GROUPS)
        filters = uint32(cuda.blockIdx.x) % uint32(FILTER_GROUPS)
        group = uint32(block) // uint32(GROUP_BLOCKS)
        number = (block - group * GROUP_BLOCKS) * THREADS + cuda.threadIdx.x
        image, number = uint32(number) // uint32(TILES), uint32(number) % uint32(TILES)
        p = min(uint32(number) // uint32(Q) * ROWS, LAST_P)
        q = uint32(number) % uint32(Q)
        k = min(filters * FILTERS, LAST_K)
        n = min(group * GROUP + image, images - 1)
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

            # multiply: one column of one channel after the other
            at = 0
            while at < size:
                for _ in range(S):
                    for h in range(WINDOW):
                        window[h] = x[uint64(corner + h * W)]
                    for r in unrolled(R):
                        for i in unrolled(QUADS):
                            load4(weight, 4 * i, tile, at + r * PADDED + 4 * i)
                        for f in unrolled(FILTERS):
                            for i in range(ROWS):
                                acc[f * ROWS + i] += window[i + r] * weight[f]
                    corner += 1
                    at += COLUMN
                corner += CHANNEL - S

        # store
        for f in unrolled(FILTERS):
            for i in range(ROWS):
                y[uint64(pixel + f * PLANE + i * Q)] = acc[f * ROWS + i]

    return conv2d_hold_sums, TILES


@cuda.jit
def convolve_any(x, filt, y):
    """Filters too large to write out: one thread per output, nothing unrolled."""
    N, K, P, Q = y.shape
    C, R, S = filt.shape[1:]
    for i in range(cuda.grid(1), y.size, cuda.gridsize(1)):
        n, k, p, q = i // (Q * P * K), i // (Q * P) % K, i // Q % P, i % Q
        acc = float32(0.0)
        for c in range(C):
            for r in range(R):
                for s in range(S):
                    acc += x[n, c, p + r, q + s] * filt[k, c, r, s]
        y[n, k, p, q] = acc


def prepare(filt, problem, **tile):
    """The filter in the order in which its kernel reads it, padded so that every 128-bit read is aligned."""
    K, C, R, S = filt.shape
    kind, constants = plan(C, problem.H, problem.W, K, R, S, **tile)
    if kind == "any":
        return filt
    weights = filt.copy_to_host()
    if kind == "one":
        packed = np.zeros((K, multiple(R * S, 4)), np.float32)
        packed[:, : R * S] = weights.reshape(K, R * S)
    else:
        filters = constants["FILTERS"]
        packed = np.zeros((ceil_div(K, filters), C, S, R, multiple(filters, 4)), np.float32)
        for group in range(len(packed)):
            k = min(group * filters, K - filters)
            packed[group, ..., :filters] = weights[k : k + filters].transpose(1, 3, 2, 0)
    return cuda.to_device(packed.reshape(-1))


def launch(x, packed, y, **tile):
    N, C, H, W = x.shape
    K, P, Q = y.shape[1:]
    R, S = H - P + 1, W - Q + 1
    kind, constants = plan(C, H, W, K, R, S, **tile)
    if kind == "any":
        convolve_any[min(ceil_div(y.size, 256), 65535), 256](x, packed, y)
        return
    if kind == "one":
        paired = W % 2 == 0 and Q % 2 == 0 and aligned2(x, y)  # every row starts on an 8-byte boundary
        kernel, tiles = hold_window(H, W, K, R, S, paired=paired, **constants)
        blocks = ceil_div(N * tiles, constants["THREADS"])
    else:
        kernel, tiles = hold_sums(C, H, W, K, R, S, **constants)
        blocks = ceil_div(N * tiles, constants["THREADS"]) * ceil_div(K, constants["FILTERS"])
    kernel[blocks, constants["THREADS"]](x.reshape(x.size), packed, y.reshape(y.size), N)
