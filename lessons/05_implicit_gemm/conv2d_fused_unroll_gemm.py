"""conv2d_fused_unroll_gemm: the GEMM's loads unroll the windows; the unrolled matrix is never written out.

Previous step: conv2d_one_channel
Builds on: conv2d_unroll_gemm
New idea: y = F @ U as in conv2d_unroll_gemm, but U exists only as tiles in shared memory: whoever stages an element
    of a tile computes where in x it lies. So no workspace and no second kernel. The product is register-blocked, and
    asynchronous copies fill one pair of tiles while the other is multiplied.
Loads per FMA: 12 filters x 8 pixels per thread: 20 / 96 = 0.21 shared values in 0.05 instructions; 1 / BLOCK_M from
    global memory, 0.08 with 12 filters, as every window is unrolled: R * S reads of a pixel.
Run: python -m lessons.05_implicit_gemm conv2d_fused_unroll_gemm
"""

import importlib
from functools import lru_cache

from numba import cuda, float32, int64, uint32

from lessons.toolkit.grid import jit
from lessons.toolkit.memory import VECTOR, aligned, copy1_async, copy4_async, load4, shared_array, wait_async
from lessons.toolkit.narrow import narrow
from lessons.toolkit.pasted import pasted
from lessons.toolkit.tiles import REGISTERS, ceil_div
from lessons.toolkit.unroll import inlined, unroll, unrolled

planning = importlib.import_module("lessons.05_implicit_gemm.helpers.fused_plan")

THREAD_M, THREAD_N = 16, 8  # a thread computes at most THREAD_M filters of THREAD_N pixels
THREADS = 64
TAPS = 32  # a tile is as deep as whole rows of the filter with at most so many taps, as far as shared memory goes
TUNABLES = {"THREAD_M": (4, 8, 12, 16), "THREAD_N": (4, 8), "THREADS": (64, 128, 256), "TAPS": (8, 16, 32)}
MAX_WRITTEN = 8  # taps whose multiply-adds are written out
OFFSETS = 2**32  # that 32 bits can tell apart


def plan(C, K, R, S, THREAD_M=THREAD_M, THREAD_N=THREAD_N, THREADS=THREADS, TAPS=TAPS):
    """The kernel's constants for a shape."""
    return planning.plan(C, K, R, S, THREAD_M, THREAD_N, THREADS, TAPS)


@lru_cache
def specialise(C, H, W, K, R, S, flat, THREADS_Y, THREAD_M, THREAD_N, THREADS, SPAN, LINES):
    """The kernel for filters of K x C x R x S and images of H x W; pixels of a block, blocks for all filters."""
    P, Q = H - R + 1, W - S + 1
    THREADS_X = THREADS // THREADS_Y
    BLOCK_M, BLOCK_N, BLOCK_K = THREADS_Y * THREAD_M, THREADS_X * THREAD_N, LINES * SPAN
    MINE = THREAD_N // THREADS_Y  # pixels whose windows a thread unrolls
    FILTER_BLOCKS = ceil_div(K, BLOCK_M)
    PIECES = ceil_div(S, SPAN)
    LAST = S - (PIECES - 1) * SPAN  # taps of a row's last piece
    PIXELS, IMAGE, MAPS, WEIGHTS = P * Q, C * H * W, K * P * Q, C * R * PIECES * SPAN
    ALL_LINES = C * R * PIECES
    CHUNKS = ceil_div(ALL_LINES, LINES)
    EVEN = ALL_LINES % LINES == 0
    NEXT_ROW, NEXT_CHANNEL = W - PIECES * SPAN, (H - R) * W  # from behind a row of the window, from below the window
    COLUMNS, FILTERS = BLOCK_K * BLOCK_N, BLOCK_K * BLOCK_M
    FILTER_TURNS = ceil_div(FILTERS, VECTOR * THREADS)
    COLUMN_TILES, FILTER_TILES = max(2 * COLUMNS, THREADS_Y * BLOCK_N), 2 * FILTERS
    WRITTEN = max(taps for taps in range(1, MAX_WRITTEN + 1) if SPAN % taps == 0)
    ACC = THREAD_M * THREAD_N
    BLOCKS = max(1, REGISTERS // (THREADS * (ACC + 64)))

    @inlined
    @unroll
    def copy_line(column_tile, target, x, corner, window, piece):
        """The taps of one line, of all pixels that this thread unrolls."""
        for i in unrolled(MINE):
            for s in range(SPAN):
                at = target + s * BLOCK_N + i * THREADS
                if s < LAST or piece < PIECES - 1:
                    copy1_async(column_tile, at, x, corner[i] + window + s)
                else:
                    column_tile[at] = float32(0.0)

    @pasted
    @narrow
    @unroll
    def copy_filters(filt_tile, target, packed, source, thread):
        for turn in unrolled(FILTER_TURNS):
            if thread < FILTERS // VECTOR - turn * THREADS:
                at = turn * THREADS * VECTOR
                copy4_async(filt_tile, target + at, packed, source + at)

    @pasted
    @narrow
    def next_line(piece, r, window):
        """Which piece of which row of the filter comes next, and how far into the window it begins."""
        piece += 1
        window += SPAN
        if piece == PIECES:
            piece, r = 0, r + 1
            window += NEXT_ROW
        if r == R:
            r = 0
            window += NEXT_CHANNEL
        return piece, r, window

    @inlined
    def multiply_tap(filters, columns, filt_tile, column_tile, filt_frag, column_frag, acc):
        """One tap of this thread's filters and pixels; `filters` and `columns` are where it lies in the tiles."""
        for i in range(0, THREAD_M, VECTOR):
            load4(filt_frag, i, filt_tile, filters + i * THREADS_Y)
        for j in range(0, THREAD_N, VECTOR):
            load4(column_frag, j, column_tile, columns + j * THREADS_X)
        for i in range(THREAD_M):
            for j in range(THREAD_N):
                acc[i * THREAD_N + j] += filt_frag[i] * column_frag[j]

    place = PIXELS, MAPS, THREADS, THREADS_X, THREADS_Y, THREAD_M, THREAD_N, BLOCK_N
    store = planning.storing(flat, K, *place)

    @jit(THREADS, BLOCKS)
    @narrow
    @unroll
    def conv2d_fused_unroll_gemm(x, packed, y, width):
        column_tile, filt_tile = shared_array(COLUMN_TILES), shared_array(FILTER_TILES)
        corner, filt_frag = cuda.local.array(MINE, int64), cuda.local.array(THREAD_M, float32)
        column_frag, acc = cuda.local.array(THREAD_N, float32), cuda.local.array(ACC, float32)

        # locate: a thread multiplies pieces of 4 filters and 4 pixels, and unrolls every THREADS-th pixel
        thread, width = cuda.threadIdx.x, uint32(width)
        tx, ty = thread // THREADS_Y * VECTOR, thread % THREADS_Y * VECTOR
        filter_block = cuda.blockIdx.x % FILTER_BLOCKS
        k0 = filter_block * BLOCK_M
        gemm_n0 = cuda.blockIdx.x // FILTER_BLOCKS * BLOCK_N
        for i in unrolled(MINE):
            gemm_n = min(gemm_n0 + thread + i * THREADS, width - 1)
            n, pixel = gemm_n // PIXELS, gemm_n % PIXELS
            corner[i] = int64(n * IMAGE + pixel // Q * W + pixel % Q)

        for i in range(ACC):
            acc[i] = float32(0.0)
        line, piece, r, window = 0, 0, 0, int64(0)  # the next line meets x[corner + window]
        source = int64(filter_block) * (CHUNKS * FILTERS) + int64(thread) * VECTOR
        left = WEIGHTS
        for chunk in range(CHUNKS + 1):
            # stage: tile `chunk` travels while the one before it is multiplied
            if chunk < CHUNKS:
                into = chunk % 2
                copy_filters(filt_tile, int64(into * FILTERS + thread * VECTOR), packed, source, thread)
                source += FILTERS
                target = int64(into * COLUMNS + thread)
                for row in unrolled(LINES):
                    if EVEN or line < ALL_LINES:
                        copy_line(column_tile, target + row * SPAN * BLOCK_N, x, corner, window, piece)
                    line += 1
                    piece, r, window = next_line(piece, r, window)

            # multiply
            if chunk > 0:
                out_of = (chunk + 1) % 2
                filters = int64(out_of * FILTERS + ty)
                columns = int64(out_of * COLUMNS + tx)
                taps = min(BLOCK_K, left)
                left -= taps
                while taps > 0:
                    for s in unrolled(WRITTEN):
                        filter_row, column_row = filters + s * BLOCK_M, columns + s * BLOCK_N
                        multiply_tap(filter_row, column_row, filt_tile, column_tile, filt_frag, column_frag, acc)
                    filters += WRITTEN * BLOCK_M
                    columns += WRITTEN * BLOCK_N
                    taps -= WRITTEN
            wait_async()
            cuda.syncthreads()

        # store
        store(y, column_tile, acc, k0, gemm_n0, tx, ty, thread, width)

    return conv2d_fused_unroll_gemm, BLOCK_N, FILTER_BLOCKS


def prepare(filt, problem, **tile):
    """The filter, transposed to the order of its tiles and filled up with zeros to whole tiles."""
    K, C, R, S = filt.shape
    return planning.packed(filt, **plan(C, K, R, S, **tile))


def launch(x, packed, y, **tile):
    N, C, H, W = x.shape
    K, P, Q = y.shape[1:]
    R, S = H - P + 1, W - Q + 1
    constants = plan(C, K, R, S, **tile)
    flat = aligned(y.reshape(N * K, P * Q))
    kernel, BLOCK_N, FILTER_BLOCKS = specialise(C, H, W, K, R, S, flat, **constants)
    images = max(1, (OFFSETS - 1) // max(C * H * W, K * P * Q))  # of one launch
    for first in range(0, N, images):
        part, maps = (x, y) if images >= N else (x[first : first + images], y[first : first + images])
        width = part.shape[0] * P * Q
        blocks = ceil_div(width, BLOCK_N) * FILTER_BLOCKS
        kernel[blocks, constants["THREADS"]](part.reshape(part.size), packed, maps.reshape(maps.size), width)
