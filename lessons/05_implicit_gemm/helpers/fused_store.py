"""How conv2d_fused_unroll_gemm stores: pieces of four pixels as they are, or through shared memory."""

from numba import cuda, int64

from lessons.toolkit.memory import VECTOR, store4
from lessons.toolkit.narrow import narrow
from lessons.toolkit.pasted import pasted
from lessons.toolkit.unroll import inlined, unroll, unrolled


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
