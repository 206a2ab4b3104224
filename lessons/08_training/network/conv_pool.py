"""Convolution, bias, ReLU and max-pooling in one kernel, for layers of few channels.

A block computes one image, a thread one window of the pool for FILTERS filters: its POOL x POOL x FILTERS sums stay
in registers, and only the largest of each window leaves, with its place. Each row of the image is read once.
Loads per FMA: (ROW + TAPS * FILTERS) / (TAPS * FILTERS * POOL**2), 0.15 for the second layer, from shared memory.
"""

from functools import lru_cache
from math import isnan

from numba import cuda, float32, int64

from lessons.toolkit.unroll import inlined, unroll, unrolled

from .layers import NONE

SUMS = 16  # of a thread: FILTERS * POOL * POOL


@lru_cache
def specialise(layer):
    """Build the kernel for a layer; returns it with its threads in a block."""
    H, C, K, TAPS, PAD, POOL, WINDOWS = layer.H, layer.C, layer.K, layer.TAPS, layer.PAD, layer.POOL, layer.WINDOWS
    WINDOW = POOL * POOL
    FILTERS = min(K, max(1, SUMS // WINDOW))
    if K % FILTERS:
        raise ValueError(f"{K=} must be a multiple of {FILTERS=}")
    GROUPS = K // FILTERS
    WORKERS = WINDOWS * WINDOWS * GROUPS
    THREADS = -(-WORKERS // 32) * 32
    FRAME = H + 2 * PAD
    FRAME_SIZE, IMAGE_SIZE, FILT_SIZE = FRAME * FRAME * C, H * H * C, K * TAPS * TAPS * C
    STRIDE = K + 1  # padded: the taps of a filter, which are read one after another, go to different banks
    TAPS_SIZE = TAPS * TAPS * C * STRIDE
    ROW = POOL + TAPS - 1  # values of an image row under a window
    ROWS, ACC = POOL * ROW, FILTERS * WINDOW

    @inlined
    def multiply_tap(r, s, at, taps, rows, acc):
        """The products of one tap of FILTERS filters with the pixels of the window."""
        for f in range(FILTERS):
            tap = taps[at + f]
            for p in range(POOL):
                for q in range(POOL):
                    acc[f * WINDOW + p * POOL + q] += tap * rows[(r + p) % POOL * ROW + q + s]

    @cuda.jit
    @unroll
    def conv_relu_pool(x, filt, bias, y, places):
        frame = cuda.shared.array(FRAME_SIZE, float32)
        taps = cuda.shared.array(TAPS_SIZE, float32)
        rows = cuda.local.array(ROWS, float32)
        acc = cuda.local.array(ACC, float32)

        # locate: a block has an image, neighbouring threads have neighbouring filters of one window
        n, thread = cuda.blockIdx.x, cuda.threadIdx.x
        group, window = thread % GROUPS, thread // GROUPS
        top, left = window // WINDOWS * POOL, window % WINDOWS * POOL

        # stage: the image channel by channel, zeros around it; the filters with k innermost
        for at in range(thread, FRAME_SIZE, THREADS):
            c, h, w = at // (FRAME * FRAME), at // FRAME % FRAME - PAD, at % FRAME - PAD
            inside = 0 <= h < H and 0 <= w < H
            frame[at] = x[n * IMAGE_SIZE + (h * H + w) * C + c] if inside else float32(0.0)
        for at in range(thread, FILT_SIZE, THREADS):
            k, tap, c = at // (TAPS * TAPS * C), at // C % (TAPS * TAPS), at % C
            taps[(c * TAPS * TAPS + tap) * STRIDE + k] = filt[at]
        cuda.syncthreads()
        if thread >= WORKERS:
            return

        # multiply
        for i in range(ACC):
            acc[i] = float32(0.0)
        for c in range(C):
            start = (c * FRAME + top) * FRAME + left
            for p in unrolled(POOL - 1):
                for v in range(ROW):
                    rows[p * ROW + v] = frame[start + p * FRAME + v]
            for r in unrolled(TAPS):  # the rows of the last turn but one, and a new one in the place of the oldest
                for v in range(ROW):
                    rows[(r + POOL - 1) % POOL * ROW + v] = frame[start + (r + POOL - 1) * FRAME + v]
                for s in unrolled(TAPS):
                    at = ((c * TAPS + r) * TAPS + s) * STRIDE + group * FILTERS
                    multiply_tap(int64(r), int64(s), at, taps, rows, acc)

        # store: the largest value of the window, after bias and ReLU, and where it was
        for f in range(FILTERS):
            best, place = acc[f * WINDOW], 0
            for i in range(1, WINDOW):
                value = acc[f * WINDOW + i]
                if value > best or isnan(value):  # a NaN stays: nothing is larger
                    best, place = value, i
            k = group * FILTERS + f
            best += bias[k]
            dead = best <= float32(0.0)  # a NaN is not dead: it must reach the loss
            to = (n * WINDOWS * WINDOWS + window) * K + k
            y[to] = float32(0.0) if dead else best
            places[to] = NONE if dead else place

    return conv_relu_pool, THREADS


def launch(layer, x, filt, bias, y, places):
    """x [N, H, H, C], filt [K, TAPS, TAPS, C], bias [K] to y and places [N, WINDOWS, WINDOWS, K], all flat.

    ``places`` (uint8) says which pixel of its window each value of y was, row by row; NONE where y is zero.
    """
    kernel, THREADS = specialise(layer)
    kernel[y.size // (layer.WINDOWS**2 * layer.K), THREADS](x, filt, bias, y, places)
