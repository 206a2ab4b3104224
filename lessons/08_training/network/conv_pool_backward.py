"""The gradients of :mod:`conv_pool`: of each window's pixels all but the one whose place was noted have none.

So both convolutions of the backward pass multiply one value per window: 1 / POOL**2 of the multiply-adds.
"""

from functools import lru_cache

from numba import cuda, float32, int32

from lessons.toolkit.memory import VECTOR, load4, shared_array
from lessons.toolkit.unroll import inlined

from .layers import NONE

REGISTERS = 16  # sums of a thread
MOST_PARTS = 4  # of the windows, each summed by threads of its own
HALF_WORD, COLUMN = 16, 0xFFFF  # a pixel's row and column in one number


@lru_cache
def specialise_filter(layer):
    """Build the kernel of the filter's gradient; returns it with its threads in a block."""
    H, C, K, TAPS, PAD, POOL, WINDOWS = layer.H, layer.C, layer.K, layer.TAPS, layer.PAD, layer.POOL, layer.WINDOWS
    TAP_VALUES = TAPS * TAPS * C  # of one filter
    FILTERS = K if TAP_VALUES * K > 1024 else 1  # of a thread
    if FILTERS > REGISTERS:
        raise ValueError(f"{K=}: a thread has at most {REGISTERS=} sums")
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
