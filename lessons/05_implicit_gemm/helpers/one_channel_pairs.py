"""One channel: a thread computes four neighbours in the flattened map, and stores them as one 128-bit word.

The kernel is that of conv2d_one_channel (lesson 04) with another tile: two pairs of pixels, each with a window of its
own, because a row of the map may end between them. A warp's stores then fill whole lines. C = 1, Q even, P * Q a
multiple of 4. The interface is that of a step.
"""

from functools import lru_cache

from numba import cuda, float32, int64, uint32, uint64

from lessons.toolkit.grid import jit
from lessons.toolkit.memory import VECTOR, address, aligned, load4, shared_array, store4
from lessons.toolkit.tiles import ceil_div, in_parts, load_run, multiple, numbering, padded, stage_filter
from lessons.toolkit.unroll import inlined, unroll, unrolled


@inlined
def window_at(pixel, Q, W):
    """Where in an image of width W the window of a pixel of the flattened map starts."""
    return int64(uint32(pixel // uint32(Q) * uint32(W) + pixel % uint32(Q)))


@lru_cache
def specialise(H, W, K, R, S, THREADS, BLOCKS, wide):
    """The kernel, and the tiles of an image; `wide` promises 128-bit access to y and 64-bit access to x."""
    P, Q = H - R + 1, W - S + 1
    PLANE, IMAGE, MAPS = P * Q, H * W, K * P * Q
    TILES = PLANE // VECTOR
    locate = numbering(TILES, THREADS)
    WINDOW_W = S + 1
    WINDOW = R * WINDOW_W
    LOAD_PAIRS = wide and WINDOW_W % 2 == 0 and W % 2 == 0
    TAPS = multiple(R * S, VECTOR)  # of a filter, padded so that 128-bit reads are aligned
    FILTERS = K * TAPS

    @jit(THREADS, BLOCKS)
    @unroll
    def conv2d_one_channel_pairs(x, packed, y, images):
        tile = shared_array(FILTERS)
        left, right = cuda.local.array(WINDOW, float32), cuda.local.array(WINDOW, float32)
        taps, acc = cuda.local.array(TAPS, float32), cuda.local.array(VECTOR, float32)

        # locate
        n, number = locate(cuda.blockIdx.x, images)
        first = uint32(VECTOR * number)
        a = n * IMAGE + window_at(first, Q, W)
        b = n * IMAGE + window_at(uint32(first + 2), Q, W)
        pixel = n * MAPS + int64(first)

        # stage: the windows in registers, the filters in shared memory
        for i in unrolled(R):
            load_run(left, i * WINDOW_W, x, a + i * W, WINDOW_W, LOAD_PAIRS)
            load_run(right, i * WINDOW_W, x, b + i * W, WINDOW_W, LOAD_PAIRS)
        stage_filter(tile, packed, 0, FILTERS, THREADS)
        cuda.syncthreads()

        at = 0
        while at < FILTERS:
            # multiply
            for i in range(0, TAPS, VECTOR):
                load4(taps, i, tile, at + i)
            for i in range(VECTOR):
                acc[i] = float32(0.0)
            for r in unrolled(R):
                for s in range(S):
                    for j in range(2):
                        acc[j] += left[r * WINDOW_W + j + s] * taps[r * S + s]
                        acc[2 + j] += right[r * WINDOW_W + j + s] * taps[r * S + s]

            # store
            if wide:
                store4(y, pixel, acc, 0)
            else:
                for i in range(VECTOR):
                    y[uint64(pixel + i)] = acc[i]
            pixel += PLANE
            at += TAPS

    return conv2d_one_channel_pairs, TILES


def prepare(filt, problem, **tile):
    """The filters one after the other, padded to a multiple of four taps."""
    K, _, R, S = filt.shape
    return padded(in_parts(filt.copy_to_host(), R, S).reshape(K, R * S))


def launch(x, packed, y, THREADS, BLOCKS):
    N, _, H, W = x.shape
    K, P, Q = y.shape[1:]
    wide = aligned(y.reshape(N * K, P * Q)) and address(x) % 8 == 0
    kernel, tiles = specialise(H, W, K, H - P + 1, W - Q + 1, THREADS, BLOCKS, wide)
    kernel[ceil_div(N * tiles, THREADS), THREADS](x.reshape(x.size), packed, y.reshape(y.size), N)
