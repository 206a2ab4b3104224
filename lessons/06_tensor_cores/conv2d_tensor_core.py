"""conv2d_tensor_core: a fused unroll and GEMM through the matrix unit, on float32 arrays rounded to TF32.

Previous step: conv2d_layer_dispatch
Builds on: conv2d_fused_unroll_gemm
New idea: sixteen neighbouring pixels are the rows of A, k runs over channels and columns of the filter. So a fragment
    is sixteen pixels of one image row, read from the staged image itself, and the same fragment serves every row of
    the filter: row r of the taps makes it part of the outputs r rows above. With one channel, a kernel of its own
    writes whole rows of results (helpers/whole_rows.py).
Loads per FMA: 4 rows of 24 filters of 5 x 5 taps: 32 values of x and 30 taps for 60 instructions of 32 multiply-adds
    of a lane each, 0.03.
Run: python -m lessons.06_tensor_cores conv2d_tensor_core
"""

import importlib
from functools import lru_cache

import numpy as np
from numba import cuda, float32, int32, int64, uint32, uint64

from lessons.toolkit.grid import jit
from lessons.toolkit.memory import VECTOR, aligned, copy1_or_zero, copy4_async, load4, store4, wait_async
from lessons.toolkit.mma import mma_m16n8k8, to_tf32
from lessons.toolkit.narrow import narrow
from lessons.toolkit.tiles import REGISTERS, ceil_div
from lessons.toolkit.unroll import inlined, unroll, unrolled

planning = importlib.import_module("lessons.06_tensor_cores.helpers.conv2d_tensor_plan")
whole_rows = importlib.import_module("lessons.06_tensor_cores.helpers.whole_rows")

REQUIRES = "8.0"
PRECISION = "tf32"
MMA_M, MMA_N, MMA_K = 16, 8, 8  # pixels, filters and k that one instruction multiplies
FILTERS = 24  # of a block, at most
WARPS = 4  # of a block, at most
ROWS = 4  # of outputs, of a warp in one pass, at most
PART_ROWS = 6  # of outputs, in a part of an image that is computed in whole rows
TICKETS = 1  # 1: a block draws each such part; 0: it takes every gridDim-th
TUNABLES = {"FILTERS": (8, 16, 24), "WARPS": (4, 8), "ROWS": (2, 4, 6), "PART_ROWS": (2, 4, 6), "TICKETS": (0, 1)}


def plan(C, H, W, K, R, S):
    """The constants of the kernel for a shape, for the largest block that the card has shared memory for."""
    return planning.plan(C, H, W, K, R, S, FILTERS, WARPS, ROWS)


@lru_cache
def multiplier(WIDTH, ROWS, R, TILES):
    """What a warp multiplies for ROWS rows of outputs, if the image lies in shared memory, WIDTH columns wide."""
    ACC_ROW, COLUMN = TILES * 4, ROWS + R - 1  # sums of a row of outputs; rows of the image that all of them need

    @inlined
    @unroll
    def multiply_rows(shared, near, far, a_frag, tap_frag, acc):
        """Eight k: one image row h after the other, with the taps of all filter rows r: part of output row h - r."""
        for h in unrolled(COLUMN):
            a_frag[0] = shared[near + h * WIDTH]
            a_frag[1] = shared[near + h * WIDTH + 8]
            a_frag[2] = shared[far + h * WIDTH]
            a_frag[3] = shared[far + h * WIDTH + 8]
            for r in range(max(0, h - ROWS + 1), min(R, h + 1)):
                for f in range(TILES):
                    mma_m16n8k8(acc, (h - r) * ACC_ROW + f * 4, a_frag, 0, tap_frag, (r * TILES + f) * 2)

    return multiply_rows


@lru_cache
def specialise(
    C, H, W, K, R, S,
    TILES, WARPS_Q, WARPS_P, ROWS, PARTS, PART_R, QUADS, CHANNELS, WIDTH, LINES, CHANNEL, FLOATS,
):  # fmt: skip
    """The kernel for images of C x H x W, its blocks for an image, threads and bytes of shared memory."""
    P, Q = H - R + 1, W - S + 1
    THREADS = 32 * WARPS_Q * WARPS_P
    PIXELS, HEIGHT = WARPS_Q * MMA_M, WARPS_P * ROWS
    BLOCKS_Q, BLOCKS_P, GROUPS = ceil_div(Q, PIXELS), ceil_div(P, HEIGHT), ceil_div(K, TILES * MMA_N)
    BLOCKS = BLOCKS_Q * BLOCKS_P * GROUPS
    CHUNKS = ceil_div(C, CHANNELS)
    K_STEPS = ceil_div(CHANNELS * S, MMA_K)
    TAP = QUADS * 32 * VECTOR  # floats of taps for eight k of a part
    TAPS, TAPS_AT = PARTS * K_STEPS * TAP, CHANNELS * CHANNEL
    IMAGE, PLANE_X = C * H * W, H * W
    OFFSETS = K_STEPS * MMA_K
    TAP_FRAG, ACC_ROW = QUADS * VECTOR, TILES * 4
    ACC = ROWS * ACC_ROW
    RESIDENT = max(1, REGISTERS // (THREADS * (ACC + TAP_FRAG + whole_rows.OTHERS)))
    multiply_rows = multiplier(WIDTH, ROWS, PART_R, TILES)

    @inlined
    @narrow
    def copy_image(shared, x, corner, lines, columns, channels):
        """Start the channels of a chunk from x[corner] on; what lies outside the image counts as zero."""
        for start in range(0, WIDTH * LINES, THREADS):
            i = start + cuda.threadIdx.x
            if i < WIDTH * LINES:
                line, column = i // WIDTH, i % WIDTH
                inside = line < lines and column < columns
                at = corner + int64(line) * W + column
                for c in range(CHANNELS):
                    copy1_or_zero(shared, i + c * CHANNEL, x, at + int64(c) * PLANE_X, inside and c < channels)

    @inlined
    @narrow
    def round_image(shared):
        """What the matrix unit would cut off is rounded instead."""
        quad = cuda.local.array(VECTOR, float32)
        for start in range(0, TAPS_AT, THREADS * VECTOR):
            i = start + cuda.threadIdx.x * VECTOR
            if i < TAPS_AT:
                load4(quad, 0, shared, i)
                for v in range(VECTOR):
                    quad[v] = to_tf32(quad[v])
                store4(shared, i, quad, 0)

    @inlined
    def store_row(y, out, acc, first, filters, columns):
        """A row of the warp's results, from acc[first] on: two filters, two pixels eight apart, of each tile."""
        for f in range(TILES):
            for v in range(4):
                if int32(f * MMA_N + v % 2) < filters and int32(v // 2 * 8) < columns:
                    y[uint64(out + (f * MMA_N + v % 2) * P * Q + v // 2 * 8)] = acc[first + f * 4 + v]

    @jit(THREADS, RESIDENT)
    @narrow
    @unroll
    def conv2d_tensor_core(x, packed, y):
        shared, offsets = cuda.shared.array(0, float32), cuda.shared.array(OFFSETS, uint32)
        a_frag, tap_frag = cuda.local.array(4, float32), cuda.local.array(TAP_FRAG, float32)
        acc = cuda.local.array(ACC, float32)

        # locate: the block's image, its group of filters, its first pixel
        n, block = int64(cuda.blockIdx.x // BLOCKS), int64(cuda.blockIdx.x % BLOCKS)
        filters, block = block % GROUPS, block // GROUPS
        p0, q0 = block // BLOCKS_Q * HEIGHT, block % BLOCKS_Q * PIXELS
        corner = n * IMAGE + p0 * W + q0

        # locate: the warp's rows and sixteen pixels, the lane's one
        thread = cuda.threadIdx.x
        warp, lane = thread // 32, thread % 32
        group, member = lane // 4, lane % 4
        row, pixel = warp // WARPS_Q * ROWS, warp % WARPS_Q * MMA_M + group
        for start in range(0, OFFSETS, THREADS):  # where in the image the taps of each k of a chunk begin
            i = start + thread
            if i < OFFSETS:
                c, s = i // S, i % S
                offsets[i] = c * CHANNEL + s if c < CHANNELS else 0

        for i in range(ACC):
            acc[i] = float32(0.0)
        for chunk in range(CHUNKS):
            # stage
            if chunk > 0:
                cuda.syncthreads()
            for start in range(0, TAPS, THREADS * VECTOR):
                i = start + thread * VECTOR
                if i < TAPS:
                    copy4_async(shared, TAPS_AT + i, packed, (filters * CHUNKS + chunk) * TAPS + i)
            first = chunk * CHANNELS
            copy_image(shared, x, corner + int64(first) * PLANE_X, H - p0, W - q0, C - first)
            wait_async()
            cuda.syncthreads()
            round_image(shared)
            cuda.syncthreads()

            # multiply: PART_R rows of the filters at a time, whose taps of eight k fit in registers
            for part in range(PARTS):
                corner_row = (part * PART_R + row) * WIDTH + pixel
                # of 64 bits: then constants that are added become part of the loads
                taps, k = int64(TAPS_AT + part * (K_STEPS * TAP) + lane * VECTOR), int64(member)
                for _ in range(K_STEPS):
                    # where in the image the lane's pixel lies for its two k
                    near, far = offsets[k] + corner_row, offsets[k + 4] + corner_row
                    for quad in unrolled(QUADS):
                        load4(tap_frag, quad * VECTOR, shared, taps + quad * 32 * VECTOR)
                    multiply_rows(shared, near, far, a_frag, tap_frag, acc)
                    k, taps = k + MMA_K, taps + TAP

        # store
        k = filters * (TILES * MMA_N) + 2 * member
        p, q = p0 + row, q0 + pixel
        out = ((n * K + k) * P + p) * Q + q
        for i in unrolled(ROWS):
            if p + i < P:
                store_row(y, out + i * Q, acc, i * ACC_ROW, int32(K - k), int32(Q - q))

    return conv2d_tensor_core, BLOCKS, THREADS


def prepare(filt, problem):
    """The taps, rounded to TF32, in the order in which lanes read them: by group of filters, chunk, part, eight k."""
    K, C, R, S = filt.shape
    return planning.packed(filt, **plan(C, problem.H, problem.W, K, R, S))


def workspace(problem):
    """The number of the next ticket, for parts of images that blocks draw: 0 before a launch and after it."""
    return cuda.to_device(np.zeros(1, np.uint32))


def launch(x, packed, y, tickets=None):
    """Without `tickets`, which only whole rows need, every shape is left to the kernel above."""
    N, C, H, W = x.shape
    K, P, Q = y.shape[1:]
    shape = C, H, W, K, H - P + 1, W - Q + 1
    constants, rows = plan(*shape), whole_rows.plan(*shape, PART_ROWS, TICKETS)
    fits = rows is not None and tickets is not None and N * rows["PARTS"] < 2**31
    together = constants["TILES"] * MMA_N >= K  # are all filters in one group, as whole rows have them?
    if fits and together and aligned(x.reshape(N, C * H * W), y.reshape(N, K * P * Q)):
        return whole_rows.launch(x, packed, y, tickets, rows, multiplier)
    kernel, blocks, threads = specialise(*shape, **constants)
    kernel[N * blocks, threads, 0, 4 * constants["FLOATS"]](x.reshape(x.size), packed, y.reshape(y.size))
