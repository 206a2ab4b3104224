"""conv2d_fused_unroll_gemm: its constants for a shape, the filter in the order of its tiles, and how it stores."""

import numpy as np
from numba import cuda, int64

from lessons.toolkit.memory import VECTOR, store4
from lessons.toolkit.narrow import narrow
from lessons.toolkit.pasted import pasted
from lessons.toolkit.tiles import ceil_div
from lessons.toolkit.unroll import inlined, unroll, unrolled

MAX_SPAN = 16  # taps of one row of the filter that are staged together
SHARED_BYTES = 48 * 1024


def plan(C, K, R, S, THREAD_M, THREAD_N, THREADS, TAPS):
    """The kernel's constants for a shape: as few rows of threads as give every filter a thread, then deep tiles.

    A line is what is staged of one row of the filter: all of it, or one of several equal pieces of a long one.
    """
    if THREAD_M % VECTOR or THREAD_N % VECTOR or THREADS % 32 or min(THREAD_M, THREAD_N, THREADS, TAPS) < 1:
        raise ValueError(f"{THREAD_M=} {THREAD_N=} must be multiples of 4, {THREADS=} of 32, {TAPS=} positive")
    SPAN = ceil_div(S, ceil_div(S, MAX_SPAN))

    def line_bytes(rows):
        """Shared memory for one line, of the pixels and of the filters of a block, twice."""
        return 2 * 4 * SPAN * (THREADS // rows * THREAD_N + rows * share(K, rows, THREAD_M))

    THREADS_Y = 1
    while THREADS_Y < THREAD_N and (THREADS_Y * THREAD_M < K or line_bytes(THREADS_Y) > SHARED_BYTES):
        THREADS_Y *= 2
    needed = line_bytes(THREADS_Y)
    if needed > SHARED_BYTES:
        raise ValueError(f"{THREADS=} {THREAD_N=}: two tiles of {SPAN} taps take {needed} bytes: {SHARED_BYTES=}")
    all_lines = C * R * ceil_div(S, SPAN)
    most = max(1, min(all_lines, TAPS // SPAN, SHARED_BYTES // needed))
    even = max(lines for lines in range(1, most + 1) if all_lines % lines == 0)
    return {
        "THREADS_Y": THREADS_Y, "THREAD_M": share(K, THREADS_Y, THREAD_M), "THREAD_N": THREAD_N, "THREADS": THREADS,
        "SPAN": SPAN, "LINES": even if 2 * even > most else most,  # no short last tile, unless that makes all short
    }  # fmt: skip


def share(K, THREADS_Y, THREAD_M):
    """Filters per thread, a multiple of 4: no more than a thread's share of the filters."""
    blocks = ceil_div(K, THREADS_Y * THREAD_M)
    return VECTOR * ceil_div(K, blocks * THREADS_Y * VECTOR)


def packed(filt, THREADS_Y, THREAD_M, SPAN, LINES, **_):
    """The filter, transposed to the order of its tiles and filled up with zeros to whole tiles."""
    K, C, R, S = filt.shape
    block_m, block_k, row = THREADS_Y * THREAD_M, LINES * SPAN, ceil_div(S, SPAN) * SPAN
    rows = np.zeros((K, C * R, row), np.float32)
    rows[..., :S] = filt.copy_to_host().reshape(K, C * R, S)
    blocks, taps = ceil_div(K, block_m), C * R * row
    whole = np.zeros((blocks * block_m, ceil_div(taps, block_k) * block_k), np.float32)
    whole[:K, :taps] = rows.reshape(K, taps)
    return cuda.to_device(whole.reshape(blocks, block_m, -1).transpose(0, 2, 1).reshape(-1))


def storing(flat, K, PIXELS, MAPS, THREADS, THREADS_X, THREADS_Y, THREAD_M, THREAD_N, BLOCK_N):
    """Build the device function that stores a thread's sums.

    `flat`: maps are multiples of 4 pixels, so a piece lies in one map and on a 16-byte boundary. Otherwise sums go
    through shared memory, so that neighbouring threads write neighbouring pixels.
    """
    MINE = THREAD_N // THREADS_Y

    @inlined
    @narrow
    @unroll
    def store_filters(y, column_tile, first_k, first_n, thread, width):
        """What the threads have left in shared memory: a filter of each row of threads, neighbouring pixels."""
        for j in unrolled(MINE):
            gemm_n = first_n + j * THREADS
            n, pixel = gemm_n // PIXELS, gemm_n % PIXELS
            for row in unrolled(THREADS_Y):
                k = first_k + row * VECTOR
                if gemm_n < width and k < K:
                    out = n * MAPS + k * PIXELS + pixel
                    y[out] = column_tile[thread + row * BLOCK_N + j * THREADS]

    @pasted
    @narrow
    @unroll
    def store_pieces(y, column_tile, acc, k0, gemm_n0, tx, ty, thread, width):
        for j in unrolled(THREAD_N // VECTOR):
            gemm_n = gemm_n0 + tx + j * VECTOR * THREADS_X
            n, pixel = gemm_n // PIXELS, gemm_n % PIXELS
            out = int64(n) * MAPS + int64(pixel)
            for i in range(THREAD_M):
                k = k0 + ty + i // VECTOR * VECTOR * THREADS_Y + i % VECTOR
                if gemm_n < width and k < K:
                    store4(y, out + int64(k) * PIXELS, acc, i * THREAD_N + j * VECTOR)

    @pasted
    @narrow
    @unroll
    def store_rows(y, column_tile, acc, k0, gemm_n0, tx, ty, thread, width):
        for i in unrolled(THREAD_M):
            for j in unrolled(THREAD_N // VECTOR):
                at = int64(ty // VECTOR * BLOCK_N + tx)
                store4(column_tile, at + j * VECTOR * THREADS_X, acc, i * THREAD_N + j * VECTOR)
            cuda.syncthreads()
            k = k0 + i // VECTOR * VECTOR * THREADS_Y + i % VECTOR
            store_filters(y, column_tile, k, gemm_n0 + thread, thread, width)
            cuda.syncthreads()

    return store_pieces if flat else store_rows
