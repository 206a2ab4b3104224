"""conv2d_tensor_core_persistent: blocks stay, each takes one image after the other, and the next is on its way.

Variant of: conv2d_tensor_core
Builds on: conv2d_tensor_core_shifted
New idea: many warps share an image, so that few images are open at a time and the pieces of a line are written soon
    after one another. A block copies its next image while it multiplies. Two lanes trade halves of their results, so
    that a warp's store is 256 bytes in one piece.
    With more channels than one, or filters wider than five, `launch` runs conv2d_tensor_core_shifted.
Loads per FMA: 5 x 5 taps, a row of 4 filters: 20 values of x for 10 instructions of 32 multiply-adds of a lane each,
    0.06; the taps stay in registers.
Run: python -m lessons.06_tensor_cores conv2d_tensor_core_persistent
"""

import importlib
from functools import lru_cache

from numba import cuda, float32, int64, uint32

from lessons.toolkit import card
from lessons.toolkit.grid import jit, multiprocessors
from lessons.toolkit.memory import VECTOR, aligned, copy1_async, copy4_async, load4, store2, wait_async
from lessons.toolkit.mma import mma_m16n8k8, to_tf32
from lessons.toolkit.tiles import ceil_div, even, multiple
from lessons.toolkit.unroll import inlined, unroll, unrolled

step = importlib.import_module("lessons.06_tensor_cores.experiments.conv2d_tensor_core_shifted")

REQUIRES = "8.0"
PRECISION = "tf32"
MMA_M, MMA_N, MMA_K = 16, 8, 8  # segments, columns and k that one instruction multiplies
SHIFT = 4  # outputs of a segment, each a column of B
PAIR = MMA_N // SHIFT  # filters of a tile
ROWS = 1  # of outputs, of a warp at a time
TAP_REGISTERS = 20  # of a lane, at most: the taps of its filters
WARPS = 24  # of a block, at most
BLOCKS = 1  # of a multiprocessor
SHARED_BYTES = min(100 * 1024, card.shared_bytes())  # of a block's two images, at most
TUNABLES = {"ROWS": (1, 2), "TAP_REGISTERS": (20, 30), "WARPS": (12, 20, 24), "BLOCKS": (1, 2)}


@lru_cache
def plan(H, W, K, R, S):
    """The constants of the kernel for images of one channel; None where it does not fit."""
    tiles = ceil_div(K, PAIR)
    groups = ceil_div(tiles, max(1, TAP_REGISTERS // (2 * R)))
    lines = multiple(H - R + 1, ROWS) + R - 1
    tasks = ceil_div(ceil_div(W - S + 1, SHIFT) * ceil_div(H - R + 1, ROWS), MMA_M)
    floats = multiple(lines * W + MMA_K, VECTOR)
    if S + SHIFT - 1 > MMA_K or 2 * R > TAP_REGISTERS or groups > WARPS or 8 * floats > SHARED_BYTES:
        return None
    return {
        "TILES": ceil_div(tiles, groups), "GROUPS": groups, "TURN": even(tasks, WARPS // groups), "FLOATS": floats,
    }  # fmt: skip


@lru_cache
def specialise(H, W, K, R, S, TILES, GROUPS, TURN, FLOATS, wide, paired):
    """The kernel and its threads; `wide` and `paired` promise 128-bit access to x and 64-bit access to y."""
    P, Q, IMAGE, MAP = H - R + 1, W - S + 1, H * W, (H - R + 1) * (W - S + 1)
    THREADS = 32 * GROUPS * TURN
    SEGMENTS, STRIPS = ceil_div(Q, SHIFT), ceil_div(P, ROWS)
    ALL = SEGMENTS * STRIPS  # segments of an image, each ROWS high
    TASKS, LANE_K = ceil_div(ALL, MMA_M), MMA_K // 2
    QUADS = ceil_div(R * TILES * 2, VECTOR)
    TAP_FRAG, ACC_ROW = QUADS * VECTOR, TILES * 4
    ACC, COLUMN = ROWS * ACC_ROW, ROWS + R - 1
    PAIRED = paired and Q % 2 == 0

    @inlined
    def copy_image(images, place, x, start, thread):
        """Start an image on its way to shared memory."""
        if wide:
            for i in range(VECTOR * int64(thread), IMAGE, VECTOR * THREADS):
                copy4_async(images, place + uint32(i), x, start + i)
        else:
            for i in range(int64(thread), IMAGE, THREADS):
                copy1_async(images, place + uint32(i), x, start + i)

    @inlined
    def segment_at(segment):
        """Where in the image a segment's window begins; those behind the last one repeat it."""
        segment = min(segment, uint32(ALL - 1))
        return segment // uint32(SEGMENTS) * uint32(ROWS * W) + segment % uint32(SEGMENTS) * uint32(SHIFT)

    @inlined
    @unroll
    def multiply_rows(images, low, high, a_frag, tap_frag, acc):
        """One image row after the other, with the taps of all filter rows that meet it."""
        for h in unrolled(COLUMN):
            a_frag[0] = to_tf32(images[low + uint32(h * W)])
            a_frag[1] = to_tf32(images[high + uint32(h * W)])
            a_frag[2] = to_tf32(images[low + uint32(h * W + LANE_K)])
            a_frag[3] = to_tf32(images[high + uint32(h * W + LANE_K)])
            for r in range(max(0, h - ROWS + 1), min(R, h + 1)):
                for f in range(TILES):
                    mma_m16n8k8(acc, (h - r) * ACC_ROW + f * 4, a_frag, 0, tap_frag, (r * TILES + f) * 2)

    @inlined
    def trade_halves(acc, first, member):
        """Lanes two apart hold two filters of eight segments; after it, one pair of each, of sixteen segments."""
        near = member < 2
        for v in range(2):
            own, other = acc[first + v], acc[first + 2 + v]
            taken = cuda.shfl_xor_sync(0xFFFFFFFF, other if near else own, 2)
            acc[first + v], acc[first + 2 + v] = own if near else taken, taken if near else other

    @inlined
    def store_segment(y, image_y, k, shift, segment, acc):
        """The lane's two neighbouring pixels of a segment, in every row, of two filters of every tile."""
        p, q = segment // uint32(SEGMENTS) * uint32(ROWS), segment % uint32(SEGMENTS) * uint32(SHIFT) + shift
        out = image_y + int64(k) * MAP + int64(p * uint32(Q) + q)
        for i in range(ROWS):
            for f in range(TILES * PAIR):
                if segment < ALL and p + i < P and q < Q and k + f < K:
                    at, first = out + i * Q + f * MAP, i * ACC_ROW + f * 2
                    if PAIRED:
                        store2(y, at, acc, first)
                    else:
                        y[at] = acc[first]
                        if q + 1 < Q:
                            y[at + 1] = acc[first + 1]

    @jit(THREADS, BLOCKS)
    @unroll
    def conv2d_tensor_core_persistent(x, packed, y, N):
        images = cuda.shared.array(0, float32)
        a_frag = cuda.local.array(4, float32)
        tap_frag = cuda.local.array(TAP_FRAG, float32)
        acc = cuda.local.array(ACC, float32)

        # locate: the warp's filters and turn, the lane's segment, filter and shift
        thread = uint32(cuda.threadIdx.x)
        warp, lane = thread // uint32(32), thread % uint32(32)
        filters, turn = warp % uint32(GROUPS), warp // uint32(GROUPS)
        group, member = lane // uint32(4), lane % uint32(4)
        half, shift = group + uint32(8) * (member // uint32(2)), 2 * member % uint32(SHIFT)

        # stage: the taps, the first image, and zeros behind both places
        for quad in unrolled(QUADS):
            load4(tap_frag, quad * VECTOR, packed, int64((filters * uint32(QUADS) + quad) * 32 + lane) * VECTOR)
        for i in range(IMAGE + int64(thread), FLOATS, THREADS):
            images[i], images[FLOATS + i] = float32(0.0), float32(0.0)
        place, images_apart = uint32(0), int64(cuda.gridDim.x)
        copy_image(images, place, x, int64(cuda.blockIdx.x) * IMAGE, thread)

        for n in range(int64(cuda.blockIdx.x), N, images_apart):
            # stage: this image has come; the next one goes where nobody reads any longer
            wait_async()
            cuda.syncthreads()
            if n + images_apart < N:
                copy_image(images, uint32(FLOATS) - place, x, (n + images_apart) * IMAGE, thread)

            for task in range(turn, TASKS, TURN):
                # multiply
                segment = uint32(task * MMA_M)
                for i in unrolled(ROWS):
                    for j in range(ACC_ROW):
                        acc[i * ACC_ROW + j] = float32(0.0)
                low = segment_at(uint32(segment + group)) + member + place
                high = segment_at(uint32(segment + group + 8)) + member + place
                multiply_rows(images, low, high, a_frag, tap_frag, acc)

                # store
                for i in unrolled(ROWS):
                    for f in range(TILES):
                        trade_halves(acc, i * ACC_ROW + f * 4, member)
                store_segment(y, n * K * MAP, filters * uint32(TILES * PAIR), shift, uint32(segment + half), acc)
            place = uint32(FLOATS) - place

    return conv2d_tensor_core_persistent, THREADS


def prepare(filt, problem):
    K, C, R, S = filt.shape
    constants = plan(problem.H, problem.W, K, R, S) if C == 1 else None
    if constants is None:
        return step.prepare(filt, problem)
    return step.packed(filt, SHIFT, 1, constants["TILES"], constants["GROUPS"])


def launch(x, packed, y):
    N, C, H, W = x.shape
    K, P, Q = y.shape[1:]
    constants = plan(H, W, K, H - P + 1, W - Q + 1) if C == 1 else None
    if constants is None:
        return step.launch(x, packed, y)
    wide, paired = aligned(x.reshape(N, H * W)), aligned(y, to=8)
    kernel, threads = specialise(H, W, K, H - P + 1, W - Q + 1, **constants, wide=wide, paired=paired)
    blocks = min(N, BLOCKS * multiprocessors())
    kernel[blocks, threads, 0, 8 * constants["FLOATS"]](x.reshape(x.size), packed, y.reshape(y.size), N)
