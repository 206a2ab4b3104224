"""Whole rows: one channel, a block as wide as the image, and results that leave as one piece of each map.

The multiplication is that of conv2d_tensor_core. What is new is how memory is met. The lines of a part of an image
are one piece of memory and come as 128-bit vectors. A pass computes ROWS rows of all filters and leaves them in
shared memory. There, as in memory, the rows of a map follow one another: neighbouring threads write neighbouring
vectors, each warp from the beginning of a sector on. And parts are small, so that the blocks that run together write
few images. At most 24 filters of 7 rows and 8 columns; what `plan` finds not to fit is left to conv2d_tensor_core.
"""

from functools import lru_cache

from numba import cuda, float32, int32, int64, uint32

from lessons.tensorcores import mma_m16n8k8, to_tf32
from lessons.tiling import REGISTERS, ceil_div, even, multiple
from lessons.unrolled import inlined, unroll, unrolled
from lessons.wide import VECTOR, copy4_async, jit, load4, store4, wait_async

MMA_M, MMA_N, MMA_K = 16, 8, 8  # pixels, filters and k that one instruction multiplies
MOST_K, MOST_R, MOST_WARPS = 24, 7, 8  # filters, rows of them, and warps of a block
OTHERS = 28  # registers of a thread, beside sums and taps
SECTOR = 8  # floats: the 32 bytes that L2 writes at a time


@lru_cache
def plan(C, H, W, K, R, S, ROWS, PART_BYTES):
    """The constants of the kernel for a shape; None where it does not fit."""
    P, Q = H - R + 1, W - S + 1
    fits = C == 1 and K <= MOST_K and R <= MOST_R and S <= MMA_K and ceil_div(Q, MMA_M) <= MOST_WARPS
    fits = fits and K * P * Q < 2**32  # places in an image's maps have 32 bits
    if not fits or any(values % VECTOR for values in (H * W, P * Q, ROWS * W, ROWS * Q)):
        return None
    MAP = multiple(ROWS * Q + 4, 8) - 4  # of the results of a pass; two maps 8 or 24 banks apart: no conflict

    def floats(passes):
        """Of the lines of the image for so many passes, and of what lanes beyond a row read behind them."""
        return multiple((passes * ROWS + R - 1) * W + MMA_M + MMA_K, VECTOR)

    passes = ceil_div(P, ROWS)
    fitting = [n for n in range(1, passes + 1) if 4 * (floats(n) + 2 * K * MAP) <= PART_BYTES]
    if not fitting:
        return None
    PASSES = even(passes, fitting[-1])
    return {"ROWS": ROWS, "PASSES": PASSES, "MAP": MAP, "STAGED": floats(PASSES)}


@lru_cache
def specialise(H, W, K, R, S, ROWS, PASSES, MAP, STAGED):
    """The kernel, its parts of an image, its threads and its bytes of shared memory."""
    P, Q, IMAGE = H - R + 1, W - S + 1, H * W
    TILES, THREADS = ceil_div(K, MMA_N), 32 * ceil_div(Q, MMA_M)
    HEIGHT = PASSES * ROWS  # of outputs, of a part
    PARTS, LINES = ceil_div(P, HEIGHT), multiple((HEIGHT + R - 1) * W, VECTOR)
    QUADS = ceil_div(R * TILES * 2, VECTOR)
    TAP_FRAG, ACC_ROW = QUADS * VECTOR, TILES * 4
    ACC, COLUMN = ROWS * ACC_ROW, ROWS + R - 1
    PIECE = multiple(ROWS * Q + VECTOR, SECTOR) // VECTOR  # vectors of a map in a pass, from the begin of a sector on
    RESIDENT = max(1, REGISTERS // (THREADS * (ACC + TAP_FRAG + OTHERS)))

    @inlined
    def copy_lines(shared, count, x, start):
        """Start the lines of a part of an image."""
        for first in range(0, LINES, VECTOR * THREADS):
            i = first + int64(cuda.threadIdx.x) * VECTOR
            if i < count:
                copy4_async(shared, i, x, start + i)

    @inlined
    def round_lines(shared, count, quad):
        """What this thread has copied, rounded: the matrix unit would cut it off."""
        for first in range(0, LINES, VECTOR * THREADS):
            i = first + int64(cuda.threadIdx.x) * VECTOR
            if i < count:
                load4(quad, 0, shared, i)
                for v in range(VECTOR):
                    quad[v] = to_tf32(quad[v])
                store4(shared, i, quad, 0)

    @inlined
    @unroll
    def multiply_rows(shared, near, far, a_frag, tap_frag, acc):
        """One image row after the other, with the taps of all filter rows that meet it."""
        for h in unrolled(COLUMN):
            a_frag[0] = shared[near + uint32(h * W)]
            a_frag[1] = shared[near + uint32(h * W + 8)]
            a_frag[2] = shared[far + uint32(h * W)]
            a_frag[3] = shared[far + uint32(h * W + 8)]
            for r in range(max(0, h - ROWS + 1), min(R, h + 1)):
                for f in range(TILES):
                    mma_m16n8k8(acc, (h - r) * ACC_ROW + f * 4, a_frag, 0, tap_frag, (r * TILES + f) * 2)

    @inlined
    def leave_row(shared, at, acc, first, filters, columns):
        """A row of the warp's results, from acc[first] on, to shared memory, where maps lie MAP apart."""
        for f in range(TILES):
            for v in range(4):
                if int32(f * MMA_N + v % 2) < filters and int32(v // 2 * 8) < columns:
                    shared[at + uint32((f * MMA_N + v % 2) * MAP + v // 2 * 8)] = acc[first + f * 4 + v]

    @inlined
    def store_rows(y, out, shared, place, values, quad):
        """So many values of every map; neighbouring threads have neighbouring vectors."""
        for start in range(0, K * PIECE, THREADS):
            i = uint32(start + cuda.threadIdx.x)
            k = i // uint32(PIECE)
            to = uint32(k * uint32(P * Q))
            # a map may begin within a sector: then the first lane has nothing to write, and no warp shares a sector
            j = uint32(i % uint32(PIECE) * uint32(VECTOR) - (uint32(out) + to) % uint32(SECTOR))
            if i < uint32(K * PIECE) and j < values:
                load4(quad, 0, shared, int64(place + k * uint32(MAP) + j))
                store4(y, out + int64(uint32(to + j)), quad, 0)

    @jit(THREADS, RESIDENT)
    @unroll
    def whole_rows(x, packed, y):
        shared = cuda.shared.array(0, float32)
        a_frag = cuda.local.array(4, float32)
        tap_frag = cuda.local.array(TAP_FRAG, float32)
        acc = cuda.local.array(ACC, float32)
        quad = cuda.local.array(4, float32)

        # locate: the warp's sixteen pixels, the lane's one, and its k
        thread = uint32(cuda.threadIdx.x)
        warp, lane = thread // uint32(32), thread % uint32(32)
        group, member = lane // uint32(4), lane % uint32(4)
        pixel = warp * uint32(MMA_M) + group
        near = pixel + (member if member < uint32(S) else uint32(0))
        far = pixel + (member + uint32(4) if member + uint32(4) < uint32(S) else uint32(0))
        left = uint32(uint32(STAGED) + uint32(2 * MAP) * member + pixel)  # where its results go
        own_filters, own_columns = int32(K) - int32(2 * member), int32(Q) - int32(pixel)

        # stage: the taps, the lines of the part, and zeros behind them
        for q in unrolled(QUADS):
            load4(tap_frag, q * VECTOR, packed, int64(uint32(q * 32) + lane) * VECTOR)
        part = int64(cuda.blockIdx.x)
        n, p0 = part // PARTS, part % PARTS * HEIGHT
        count = min(LINES, (H - p0) * W)
        for i in range(count + int64(thread), STAGED, THREADS):
            shared[i] = float32(0.0)
        copy_lines(shared, count, x, n * IMAGE + p0 * W)
        wait_async()
        round_lines(shared, count, quad)
        cuda.syncthreads()

        for turn in range(min(PASSES, (P - p0 + ROWS - 1) // ROWS)):
            # multiply
            for i in unrolled(ROWS):
                for j in range(ACC_ROW):
                    acc[i * ACC_ROW + j] = float32(0.0)
            top = uint32(turn * (ROWS * W))
            multiply_rows(shared, uint32(near + top), uint32(far + top), a_frag, tap_frag, acc)

            # store: through one of two places; the other one is still read
            half = uint32(turn % 2 * (K * MAP))
            for i in unrolled(ROWS):
                leave_row(shared, uint32(left + half + uint32(i * Q)), acc, i * ACC_ROW, own_filters, own_columns)
            cuda.syncthreads()
            p = p0 + turn * ROWS
            out = n * (K * P * Q) + p * Q
            store_rows(y, out, shared, uint32(half + uint32(STAGED)), uint32(min(P - p, ROWS) * Q), quad)

    return whole_rows, PARTS, THREADS, 4 * (STAGED + 2 * K * MAP)


def launch(x, packed, y, constants):
    """y = x convolved with what conv2d_tensor_core.prepare has packed; x and y begin on 16-byte boundaries."""
    N, _, H, W = x.shape
    K, P, Q = y.shape[1:]
    kernel, parts, threads, shared = specialise(H, W, K, H - P + 1, W - Q + 1, **constants)
    kernel[N * parts, threads, 0, shared](x.reshape(x.size), packed, y.reshape(y.size))
