"""Convolution, bias, ReLU and max-pooling in one kernel, for layers of few channels; and its gradients.

A block computes one image, a thread one window of the pool for FILTERS filters: its POOL x POOL x FILTERS sums stay
in registers, and only the largest of each window leaves, with its place. Each row of the image is read once.
Loads per FMA: (ROW + TAPS * FILTERS) / (TAPS * FILTERS * POOL**2), 0.15 for the second layer, from shared memory.
Both convolutions of the backward pass multiply one value per window, that of the pixel whose place was noted.
"""

from functools import lru_cache
from math import isnan

from numba import cuda, float32, int32, int64

from lessons.toolkit.memory import VECTOR, load4, shared_array
from lessons.toolkit.unroll import inlined, unroll, unrolled

from .layers import NONE

SUMS = 16  # of a thread: FILTERS * POOL * POOL; of a filter's gradient: filters
MOST_PARTS = 4  # of the windows, each summed by threads of its own
HALF_WORD, COLUMN = 16, 0xFFFF  # a pixel's row and column in one number


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


# --- the gradients ---


@lru_cache
def specialise_filter(layer):
    """Build the kernel of the filter's gradient; returns it with its threads in a block."""
    H, C, K, TAPS, PAD, POOL, WINDOWS = layer.H, layer.C, layer.K, layer.TAPS, layer.PAD, layer.POOL, layer.WINDOWS
    TAP_VALUES = TAPS * TAPS * C  # of one filter
    FILTERS = K if TAP_VALUES * K > 1024 else 1  # of a thread
    if FILTERS > SUMS:
        raise ValueError(f"{K=}: a thread has at most {SUMS=}")
    GROUPS = K // FILTERS
    WORKERS = TAP_VALUES * GROUPS
    BIAS = -(-WORKERS // 32) * 32  # the first thread of the warps that add up the gradient of the bias
    THREADS = BIAS + -(-K // 32) * 32
    FRAME = H + 2 * PAD
    FRAME_SIZE, IMAGE_SIZE, PLACES = FRAME * FRAME * C, H * H * C, WINDOWS * WINDOWS * K

    @cuda.jit
    def filter_gradient(x, dy, places, partials, N, PARAMETERS, filt_at, bias_at):
        frame = cuda.shared.array(FRAME_SIZE, float32)
        values = cuda.shared.array(PLACES, float32)
        starts = cuda.shared.array(PLACES, int32)
        acc = cuda.local.array(FILTERS, float32)

        # locate: a block has every gridDim.x-th image, a thread one tap of FILTERS filters
        thread, part = cuda.threadIdx.x, cuda.blockIdx.x
        group, tap = thread // TAP_VALUES, thread % TAP_VALUES
        offset = (tap // (TAPS * C) * FRAME + tap // C % TAPS) * C + tap % C
        for f in range(FILTERS):
            acc[f] = float32(0.0)
        total = float32(0.0)

        for n in range(part, N, cuda.gridDim.x):
            # stage: the image, zeros around it; of each window its gradient, and where its pixel's taps begin
            for at in range(thread, FRAME_SIZE, THREADS):
                h, w, c = at // (FRAME * C) - PAD, at // C % FRAME - PAD, at % C
                inside = 0 <= h < H and 0 <= w < H
                frame[at] = x[n * IMAGE_SIZE + (h * H + w) * C + c] if inside else float32(0.0)
            for at in range(thread, PLACES, THREADS):
                place, window = int32(places[n * PLACES + at]), at // K
                dead = place == NONE
                values[at] = float32(0.0) if dead else dy[n * PLACES + at]
                place = 0 if dead else place
                h, w = window // WINDOWS * POOL + place // POOL, window % WINDOWS * POOL + place % POOL
                starts[at] = (h * FRAME + w) * C
            cuda.syncthreads()

            # multiply
            if thread < WORKERS:
                for window in range(WINDOWS * WINDOWS):
                    for f in range(FILTERS):
                        at = window * K + group * FILTERS + f
                        acc[f] += values[at] * frame[starts[at] + offset]
            elif BIAS <= thread < BIAS + K:
                for at in range(thread - BIAS, PLACES, K):
                    total += values[at]
            cuda.syncthreads()

        # store: a part of the sum over all images
        if thread < WORKERS:
            for f in range(FILTERS):
                k = group * FILTERS + f
                partials[part * PARAMETERS + filt_at + k * TAP_VALUES + tap] = acc[f]
        elif BIAS <= thread < BIAS + K:
            partials[part * PARAMETERS + bias_at + thread - BIAS] = total

    return filter_gradient, THREADS


@lru_cache
def specialise_input(layer):
    """Build the kernel of the input's gradient; returns it with its threads in a block."""
    H, C, K, TAPS, PAD, POOL, WINDOWS = layer.H, layer.C, layer.K, layer.TAPS, layer.PAD, layer.POOL, layer.WINDOWS
    if C % VECTOR:
        raise ValueError(f"{C=} must be a multiple of {VECTOR=}: channels are read four at a time")
    PIXELS, PLACES, FILT_SIZE = H * H, WINDOWS * WINDOWS * K, K * TAPS * TAPS * C
    LANES = -(-PIXELS // 32) * 32  # threads that share a part of the windows
    PARTS = max(1, min(MOST_PARTS, 1024 // LANES))
    THREADS = PARTS * LANES
    DX_SIZE = PIXELS * C
    SUMS = PARTS * DX_SIZE

    @inlined
    def add_window(at, value, taps, tap, acc):
        for c in range(0, C, VECTOR):
            load4(tap, 0, taps, at + c)
            for v in range(VECTOR):
                acc[c + v] += value * tap[v]

    @cuda.jit
    def input_gradient(dy, places, filt, dx):
        taps = shared_array(FILT_SIZE)
        sums = shared_array(SUMS)
        values = cuda.shared.array(PLACES, float32)
        pixels = cuda.shared.array(PLACES, int32)
        acc = cuda.local.array(C, float32)
        tap = cuda.local.array(VECTOR, float32)

        # locate: a block has an image, a thread a pixel of its input and every PARTS-th window
        n, thread = cuda.blockIdx.x, cuda.threadIdx.x
        part, pixel = thread // LANES, thread % LANES
        h, w = pixel // H + PAD, pixel % H + PAD
        for c in range(C):
            acc[c] = float32(0.0)

        # stage: the filters; of each window its gradient and the pixel that takes it
        for at in range(thread, FILT_SIZE, THREADS):
            taps[at] = filt[at]
        for at in range(thread, PLACES, THREADS):
            place, window = int32(places[n * PLACES + at]), at // K
            dead = place == NONE
            values[at] = float32(0.0) if dead else dy[n * PLACES + at]
            place = 0 if dead else place
            row, column = window // WINDOWS * POOL + place // POOL, window % WINDOWS * POOL + place % POOL
            pixels[at] = (row << HALF_WORD) + column
        cuda.syncthreads()

        # multiply: a window counts if its pixel saw this one
        if pixel < PIXELS:
            for at in range(part, PLACES, PARTS):
                value = values[at]
                if value != float32(0.0):  # for all threads or for none
                    r, s = int32(h - (pixels[at] >> HALF_WORD)), int32(w - (pixels[at] & COLUMN))
                    if 0 <= r < TAPS and 0 <= s < TAPS:
                        add_window(((at % K * TAPS + r) * TAPS + s) * C, value, taps, tap, acc)
            for c in range(C):
                sums[part * DX_SIZE + pixel * C + c] = acc[c]
        cuda.syncthreads()

        # store: the parts, added in their order
        for at in range(thread, DX_SIZE, THREADS):
            total = sums[at]
            for other in range(1, PARTS):
                total += sums[other * DX_SIZE + at]
            dx[n * DX_SIZE + at] = total

    return input_gradient, THREADS


def launch_filter(layer, x, dy, places, partials, filt_at, bias_at):
    """x [N, H, H, C], dy and places [N, WINDOWS, WINDOWS, K], all flat, to partials [PARTS, PARAMETERS].

    Each row gets a part of the filter's gradient, from ``filt_at`` on, and of the bias's, from ``bias_at`` on.
    """
    kernel, THREADS = specialise_filter(layer)
    parts, parameters = partials.shape
    kernel[parts, THREADS](x, dy, places, partials.reshape(partials.size), x.size // (layer.H**2 * layer.C),
                           parameters, filt_at, bias_at)  # fmt: skip


def launch_input(layer, dy, places, filt, dx):
    """dy and places [N, WINDOWS, WINDOWS, K], filt [K, TAPS, TAPS, C] to dx [N, H, H, C], all flat."""
    kernel, THREADS = specialise_input(layer)
    kernel[dx.size // (layer.H**2 * layer.C), THREADS](dy, places, filt, dx)
