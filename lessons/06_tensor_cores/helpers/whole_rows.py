"""Whole rows: one channel, a block as wide as the image, and results that leave as one piece of each map.

The multiplication is that of conv2d_tensor_core. A part is ROWS rows of all maps of an image. Its lines are one piece
of x, and come as 128-bit vectors; its results go through shared memory, so that neighbouring threads write
neighbouring vectors, each warp from the beginning of a sector on. Blocks stay: while one multiplies, the lines of its
next part, for which it drew a ticket, are on their way. What `plan` finds not to fit is left to conv2d_tensor_core.
"""

from functools import lru_cache

import numpy as np
from numba import cuda, float32, int32, int64, uint32

from lessons.toolkit.grid import jit, multiprocessors
from lessons.toolkit.memory import VECTOR, copy4_async, load4, store4, wait_async
from lessons.toolkit.mma import to_tf32
from lessons.toolkit.narrow import narrow
from lessons.toolkit.tiles import REGISTERS, ceil_div, multiple
from lessons.toolkit.unroll import inlined, unroll, unrolled

MMA_M, MMA_N, MMA_K = 16, 8, 8  # pixels, filters and k that one instruction multiplies
MOST_K, MOST_R, MOST_WARPS = 24, 7, 8  # filters, rows of them, and warps of a block
MOST_BYTES = 56 * 1024  # of shared memory for a block, so that four are resident
OTHERS = 28  # registers of a thread, beside sums and taps
SECTOR = 8  # floats: the 32 bytes that L2 writes at a time


@lru_cache
def plan(C, H, W, K, R, S, ROWS, TICKETS):
    """The constants of the kernel for a shape; None where it does not fit."""
    P, Q = H - R + 1, W - S + 1
    fits = C == 1 and K <= MOST_K and R <= MOST_R and S <= MMA_K and ceil_div(Q, MMA_M) <= MOST_WARPS
    fits = fits and K * P * Q < 2**32  # places in an image's maps have 32 bits
    if not fits or any(values % VECTOR for values in (H * W, P * Q, ROWS * W, ROWS * Q)):
        return None
    STAGED = multiple((ROWS + R - 1) * W + MMA_M + MMA_K, VECTOR)  # lines, and what lanes beyond a row read behind
    MAP = multiple(ROWS * Q + 4, 8) - 4  # of the results; two maps 8 or 24 banks apart: no conflict
    if 4 * 2 * (STAGED + K * MAP) > MOST_BYTES:
        return None
    return {"ROWS": ROWS, "PARTS": ceil_div(P, ROWS), "STAGED": STAGED, "MAP": MAP, "TICKETS": TICKETS}


@lru_cache
def specialise(H, W, K, R, S, ROWS, PARTS, STAGED, MAP, TICKETS, multiplier):
    """The kernel, the blocks of a multiprocessor, their threads and bytes of shared memory."""
    P, Q = H - R + 1, W - S + 1
    TILES, THREADS = ceil_div(K, MMA_N), 32 * ceil_div(Q, MMA_M)
    LINE_FLOATS = multiple((ROWS + R - 1) * W, VECTOR)
    QUADS = ceil_div(R * TILES * 2, VECTOR)
    TAP_FRAG, ACC_ROW = QUADS * VECTOR, TILES * 4
    ACC = ROWS * ACC_ROW
    PIECE = multiple(ROWS * Q + VECTOR, SECTOR) // VECTOR  # vectors of a map in a part, from the start of a sector
    RESIDENT = max(1, REGISTERS // (THREADS * (ACC + TAP_FRAG + OTHERS)))
    multiply_rows = multiplier(W, ROWS, R, TILES)

    @inlined
    @narrow
    def values_of(part, parts):
        """How many floats of x the lines of a part take; 0 beyond the last part."""
        first = part % PARTS * (ROWS * W)
        return min(LINE_FLOATS, H * W - first) if part < parts else 0

    @inlined
    @narrow
    def copy_lines(shared, place, x, part, parts):
        """Start the lines of a part of an image."""
        count = values_of(part, parts)
        start = int64(part // PARTS) * (H * W) + part % PARTS * (ROWS * W)
        for first in range(0, LINE_FLOATS, VECTOR * THREADS):
            i = first + VECTOR * cuda.threadIdx.x
            if i < count:
                copy4_async(shared, place + i, x, start + i)

    @inlined
    @narrow
    def round_lines(shared, place, part, parts, quad):
        """What this thread has copied, rounded: the matrix unit would cut it off."""
        count = values_of(part, parts)
        for first in range(0, LINE_FLOATS, VECTOR * THREADS):
            i = first + VECTOR * cuda.threadIdx.x
            if i < count:
                load4(quad, 0, shared, place + i)
                for v in range(VECTOR):
                    quad[v] = to_tf32(quad[v])
                store4(shared, place + i, quad, 0)

    @inlined
    def leave_row(shared, at, acc, first, filters, columns):
        """A row of the warp's results, from acc[first] on, to shared memory, where maps lie MAP apart."""
        for f in range(TILES):
            for v in range(4):
                if f * MMA_N + v % 2 < filters and v // 2 * 8 < columns:
                    shared[at + (f * MMA_N + v % 2) * MAP + v // 2 * 8] = acc[first + f * 4 + v]

    @inlined
    @narrow
    def store_rows(y, out, shared, place, values, quad):
        """Write `values` results of each map; neighbouring threads write neighbouring vectors."""
        for start in range(0, K * PIECE, THREADS):
            i = start + cuda.threadIdx.x
            k = i // PIECE
            to = k * (P * Q)
            # pieces begin on a sector: no warps share one. Where a map begins later, j wraps around, beyond `values`
            j = i % PIECE * VECTOR - (uint32(out) + to) % SECTOR
            if i < K * PIECE and j < values:
                load4(quad, 0, shared, place + k * MAP + j)
                store4(y, out + (to + j), quad, 0)

    @jit(THREADS, RESIDENT)
    @narrow
    @unroll
    def whole_rows(x, packed, y, tickets, parts):
        shared, drawn = cuda.shared.array(0, float32), cuda.shared.array(2, uint32)
        a_frag, tap_frag = cuda.local.array(4, float32), cuda.local.array(TAP_FRAG, float32)
        acc, quad = cuda.local.array(ACC, float32), cuda.local.array(4, float32)

        # locate: the warp's sixteen pixels, the lane's one, and its k
        thread = cuda.threadIdx.x
        warp, lane = thread // 32, thread % 32
        group, member = lane // 4, lane % 4
        pixel = warp * MMA_M + group
        near = pixel + (member if member < S else 0)  # taps beyond S are 0: any number will do, so its own pixel
        far = pixel + (member + 4 if member + 4 < S else 0)
        results_at = 2 * STAGED + 2 * MAP * member + pixel  # where in shared memory
        own_filters, own_columns = int32(K - 2 * member), int32(Q - pixel)

        # stage: the taps; zeros behind the lines; the lines of the block's first part, and those of the next one
        for q in unrolled(QUADS):
            load4(tap_frag, q * VECTOR, packed, (q * 32 + lane) * VECTOR)
        for i in range(thread, 2 * STAGED, THREADS):
            shared[i] = float32(0.0)
        cuda.syncthreads()
        blocks = cuda.gridDim.x
        part, part_next = cuda.blockIdx.x, blocks + cuda.blockIdx.x
        copy_lines(shared, 0, x, part, parts)
        wait_async()
        round_lines(shared, 0, part, parts, quad)
        cuda.syncthreads()
        copy_lines(shared, STAGED, x, part_next, parts)

        turn = 0  # which of the two places for lines, for results and for a ticket
        while part < parts:
            # locate: the part after the next one. There are as many tickets as parts: then the count is 0 again
            if thread == 0:
                ticket = cuda.atomic.inc(tickets, 0, parts - 1) if TICKETS else part
                drawn[turn] = 2 * blocks + ticket

            # multiply
            for i in range(ACC):
                acc[i] = float32(0.0)
            here = turn * STAGED
            multiply_rows(shared, near + here, far + here, a_frag, tap_frag, acc)

            # stage: the lines of the next part have come
            wait_async()
            round_lines(shared, STAGED - here, part_next, parts, quad)

            # store
            half = turn * (K * MAP)
            for i in unrolled(ROWS):
                leave_row(shared, results_at + half + i * Q, acc, i * ACC_ROW, own_filters, own_columns)
            cuda.syncthreads()
            part_after = drawn[turn]
            copy_lines(shared, here, x, part_after, parts)
            p = part % PARTS * ROWS
            out = int64(part // PARTS) * (K * P * Q) + p * Q
            store_rows(y, out, shared, half + 2 * STAGED, min(P - p, ROWS) * Q, quad)
            part, part_next, turn = part_next, part_after, 1 - turn

    return whole_rows, RESIDENT, THREADS, 4 * 2 * (STAGED + K * MAP)


def launch(x, packed, y, tickets, constants, multiplier):
    """y [N, K, P, Q] = x [N, 1, H, W] convolved with what conv2d_tensor_core.prepare has packed.

    x and y begin on 16-byte boundaries. `tickets` is a uint32 of value 0, and has it again when the kernel ends.
    """
    N, _, H, W = x.shape
    K, P, Q = y.shape[1:]
    kernel, resident, threads, shared = specialise(H, W, K, H - P + 1, W - Q + 1, **constants, multiplier=multiplier)
    parts = N * constants["PARTS"]
    blocks = min(parts, resident * multiprocessors())
    kernel[blocks, threads, 0, shared](x.reshape(x.size), packed, y.reshape(y.size), tickets, np.uint32(parts))
