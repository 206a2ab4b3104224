"""conv2d_tensor_core_shifted: for one channel; the columns of a tile are filters, each at several shifts.

Variant of: conv2d_tensor_core
New idea: a row of a filter has five taps, and eight k are to be filled. Eight neighbouring pixels hold the windows of
    four outputs. So a row of A is such a *segment*, and a filter has four columns of B, its taps shifted down by 0 to
    3: zeros fill the tile in place of k that nobody needs. Two filters share a tile, a fragment serves four times as
    many outputs, and a lane's two results are neighbours: a warp stores whole lines as they lie in its registers.
    Segments are numbered through the image, so that no row of A is idle where an image row ends.
    A pixel that is infinite or NaN spoils a few outputs beside those that read it: zero times infinity is NaN.
    With more channels than one, or filters whose taps no lane can hold, `launch` runs conv2d_tensor_core.
Loads per FMA: 5 x 5 taps, 3 rows of 6 filters: 28 values of x for 45 instructions of 32 multiply-adds of a lane each,
    0.02; the taps stay in registers.
Run: python -m lessons.06_tensor_cores conv2d_tensor_core_shifted
"""

import importlib
from functools import lru_cache

import numpy as np
from numba import cuda, float32, int64, uint32

from lessons.toolkit.grid import jit
from lessons.toolkit.memory import VECTOR, aligned, load4, store2, store4
from lessons.toolkit.mma import mma_m16n8k8, to_tf32
from lessons.toolkit.tiles import ceil_div, even, multiple
from lessons.toolkit.unroll import inlined, unroll, unrolled

step = importlib.import_module("lessons.06_tensor_cores.conv2d_tensor_core")
rounded = step.rounded

REQUIRES = "8.0"
PRECISION = "tf32"
MMA_M, MMA_N, MMA_K = 16, 8, 8  # segments, columns and k that one instruction multiplies
SHIFTS = (4, 2)  # outputs of a segment, the better ones first
ROWS = 3  # of outputs, of a warp at a time
TAP_REGISTERS = 32  # of a lane, at most: the taps of its filters
WARPS = 4  # of a block, or more where filters need more groups of warps
GROUPS = 8  # of warps, at most
SHARED_BYTES = 96 * 1024  # of an image, at most
REGISTERS, OTHERS = 65536, 40  # of a multiprocessor; of a thread, beside sums and taps
TUNABLES = {"ROWS": (1, 2, 3, 6), "TAP_REGISTERS": (32, 64), "WARPS": (4, 8)}


@lru_cache
def plan(H, W, K, R, S):
    """The constants of the kernel for images of one channel; None where it does not fit."""
    P = H - R + 1

    def steps(shifts):
        return ceil_div(S + shifts - 1, MMA_K)

    def tiles(shifts):
        return ceil_div(K, MMA_N // shifts)

    shifts = min(SHIFTS, key=lambda shifts: steps(shifts) * tiles(shifts) / shifts)
    of_a_tile = 2 * R * steps(shifts)  # registers
    groups = ceil_div(tiles(shifts), max(1, TAP_REGISTERS // of_a_tile))
    lines = multiple(P, ROWS) + R - 1
    floats = multiple(lines * W + steps(shifts) * MMA_K, VECTOR)
    if of_a_tile > TAP_REGISTERS or groups > GROUPS or 4 * floats > SHARED_BYTES:
        return None
    return {
        "SHIFT": shifts, "K_STEPS": steps(shifts), "TILES": even(tiles(shifts), TAP_REGISTERS // of_a_tile),
        "GROUPS": groups, "WARPS": multiple(WARPS, groups), "ROWS": ROWS, "FLOATS": floats,
    }  # fmt: skip


@lru_cache
def specialise(H, W, K, R, S, SHIFT, K_STEPS, TILES, GROUPS, WARPS, ROWS, FLOATS, wide, paired):
    """The kernel and its threads; `wide` and `paired` promise 128-bit access to x and 64-bit access to y."""
    P, Q, IMAGE, MAP = H - R + 1, W - S + 1, H * W, (H - R + 1) * (W - S + 1)
    THREADS = 32 * WARPS
    SEGMENTS, STRIPS = ceil_div(Q, SHIFT), ceil_div(P, ROWS)
    ALL = SEGMENTS * STRIPS  # segments of an image, each ROWS high
    TASKS, TURN = ceil_div(ALL, MMA_M), WARPS // GROUPS
    QUADS = ceil_div(R * K_STEPS * TILES * 2, VECTOR)
    TAP_FRAG, ACC_ROW = QUADS * VECTOR, TILES * 4
    ACC, COLUMN = ROWS * ACC_ROW, ROWS + R - 1
    RESIDENT = max(1, REGISTERS // (THREADS * (ACC + TAP_FRAG + OTHERS)))
    PAIRED = paired and Q % 2 == 0

    @inlined
    def stage_image(image, x, start, thread):
        """The image, rounded to what the matrix unit takes, and zeros behind it."""
        quad = cuda.local.array(VECTOR, float32)
        if wide:
            for i in range(VECTOR * int64(thread), IMAGE, VECTOR * THREADS):
                load4(quad, 0, x, start + i)
                for v in range(VECTOR):
                    quad[v] = to_tf32(quad[v])
                store4(image, i, quad, 0)
        else:
            for i in range(int64(thread), IMAGE, THREADS):
                image[i] = to_tf32(x[start + i])
        for i in range(IMAGE + int64(thread), FLOATS, THREADS):
            image[i] = float32(0.0)

    @inlined
    def segment_at(segment):
        """Where in the image a segment's window begins; those behind the last one repeat it."""
        segment = min(segment, uint32(ALL - 1))
        return segment // uint32(SEGMENTS) * uint32(ROWS * W) + segment % uint32(SEGMENTS) * uint32(SHIFT)

    @inlined
    @unroll
    def multiply_rows(image, low, high, a_frag, tap_frag, acc):
        """One image row after the other, with the taps of all filter rows that meet it."""
        for h in unrolled(COLUMN):
            for k in unrolled(K_STEPS):
                a_frag[0] = image[low + uint32(h * W + k * MMA_K)]
                a_frag[1] = image[high + uint32(h * W + k * MMA_K)]
                a_frag[2] = image[low + uint32(h * W + k * MMA_K + 4)]
                a_frag[3] = image[high + uint32(h * W + k * MMA_K + 4)]
                for r in range(max(0, h - ROWS + 1), min(R, h + 1)):
                    for f in range(TILES):
                        taps = ((k * R + r) * TILES + f) * 2
                        mma_m16n8k8(acc, (h - r) * ACC_ROW + f * 4, a_frag, 0, tap_frag, taps)

    @inlined
    def store_segment(y, image_y, k, shift, segment, acc, half):
        """The lane's two neighbouring pixels of a segment, in every row and of every tile's filter."""
        p, q = segment // uint32(SEGMENTS) * uint32(ROWS), segment % uint32(SEGMENTS) * uint32(SHIFT) + shift
        out = image_y + int64(k) * MAP + int64(p * uint32(Q) + q)
        for i in range(ROWS):
            for f in range(TILES):
                if segment < ALL and p + i < P and q < Q and k + f * (MMA_N // SHIFT) < K:
                    at, first = out + i * Q + f * (MMA_N // SHIFT) * MAP, i * ACC_ROW + f * 4 + half
                    if PAIRED:
                        store2(y, at, acc, first)
                    else:
                        y[at] = acc[first]
                        if q + 1 < Q:
                            y[at + 1] = acc[first + 1]

    @jit(THREADS, RESIDENT)
    @unroll
    def conv2d_tensor_core_shifted(x, packed, y):
        image = cuda.shared.array(0, float32)
        a_frag = cuda.local.array(4, float32)
        tap_frag = cuda.local.array(TAP_FRAG, float32)
        acc = cuda.local.array(ACC, float32)

        # locate: the block's image, the warp's filters, the lane's segment, filter and shift
        n, thread = int64(cuda.blockIdx.x), uint32(cuda.threadIdx.x)
        warp, lane = thread // uint32(32), thread % uint32(32)
        filters, group, member = warp % uint32(GROUPS), lane // uint32(4), lane % uint32(4)
        k = filters * uint32(TILES * MMA_N // SHIFT) + 2 * member // uint32(SHIFT)
        shift = 2 * member % uint32(SHIFT)

        # stage
        stage_image(image, x, n * IMAGE, thread)
        for quad in unrolled(QUADS):
            load4(tap_frag, quad * VECTOR, packed, int64((filters * uint32(QUADS) + quad) * 32 + lane) * VECTOR)
        cuda.syncthreads()

        for task in range(warp // uint32(GROUPS), TASKS, TURN):
            # multiply
            segment = uint32(task * MMA_M) + group
            for i in unrolled(ROWS):
                for j in range(ACC_ROW):
                    acc[i * ACC_ROW + j] = float32(0.0)
            low, high = segment_at(segment) + member, segment_at(uint32(segment + 8)) + member
            multiply_rows(image, low, high, a_frag, tap_frag, acc)

            # store
            for half in range(2):
                store_segment(y, n * K * MAP, k, shift, uint32(segment + 8 * half), acc, 2 * half)

    return conv2d_tensor_core_shifted, THREADS


def packed(filt, SHIFT, K_STEPS, TILES, GROUPS):
    """The taps at each shift, rounded to TF32, in the order in which lanes read them, by group of warps."""
    K, _, R, S = filt.shape
    taps = rounded(filt.copy_to_host().reshape(K, R, S))
    shifted = np.zeros((GROUPS * TILES * MMA_N // SHIFT, SHIFT, R, K_STEPS * MMA_K), np.float32)
    for shift in range(SHIFT):
        shifted[:K, shift, :, shift : shift + S] = taps
    # lane 4 * group + member holds k = member and member + 4 of column `group`
    columns = shifted.reshape(GROUPS, TILES, MMA_N, R, K_STEPS, 2, 4).transpose(0, 2, 6, 4, 3, 1, 5)
    lanes = columns.reshape(GROUPS, 32, K_STEPS * R * TILES * 2)
    whole = np.zeros((GROUPS, 32, multiple(lanes.shape[-1], VECTOR)), np.float32)
    whole[..., : lanes.shape[-1]] = lanes
    return cuda.to_device(np.ascontiguousarray(whole.reshape(GROUPS, 32, -1, VECTOR).swapaxes(1, 2)).reshape(-1))


def prepare(filt, problem):
    K, C, R, S = filt.shape
    constants = plan(problem.H, problem.W, K, R, S) if C == 1 else None
    if constants is None:
        return step.prepare(filt, problem)
    return packed(filt, *(constants[name] for name in ("SHIFT", "K_STEPS", "TILES", "GROUPS")))


def launch(x, packed, y):
    N, C, H, W = x.shape
    K, P, Q = y.shape[1:]
    constants = plan(H, W, K, H - P + 1, W - Q + 1) if C == 1 else None
    if constants is None:
        return step.launch(x, packed, y)
    wide, paired = aligned(x.reshape(N, H * W)), aligned(y, to=8)
    kernel, threads = specialise(H, W, K, H - P + 1, W - Q + 1, **constants, wide=wide, paired=paired)
    kernel[N, threads, 0, 4 * constants["FLOATS"]](x.reshape(x.size), packed, y.reshape(y.size))
