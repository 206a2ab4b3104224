"""conv2d_fused_unroll_gemm: the constants of the kernel for a shape, and the filter in the order of its tiles."""

import numpy as np
from numba import cuda

from lessons.toolkit.memory import VECTOR
from lessons.toolkit.tiles import ceil_div

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
        "THREADS_Y": THREADS_Y,
        "THREAD_M": share(K, THREADS_Y, THREAD_M),
        "THREAD_N": THREAD_N,
        "THREADS": THREADS,
        "SPAN": SPAN,
        "LINES": even if 2 * even > most else most,  # no short last tile, unless that makes all tiles short
    }


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
