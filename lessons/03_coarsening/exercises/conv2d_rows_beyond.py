"""Exercise 03.6, find the bug: four pixels for each thread, or none.

A thread computes ROWS pixels below each other; a column of pixels, once in registers, serves all of them. A thread
that has fewer than ROWS does nothing, so it needs no further guard, and rows are never written. Give each row of a
map its sum, with a guard only where one is needed: which rows of x may be read, and which of y written? Change at
most 4 lines.
Grade: python -m common grade 03.6
"""

from functools import lru_cache

from numba import cuda, float32

THREADS_X, THREADS_Y = 16, 4
ROWS = 4  # pixels below each other that a thread computes


@lru_cache
def specialise(R, S):
    """The kernel for filters of R x S taps."""
    COLUMN = ROWS + R - 1

    @cuda.jit
    def conv2d_rows_beyond(x, filt, y):
        column = cuda.local.array(COLUMN, float32)
        acc = cuda.local.array(ROWS, float32)
        C, H = x.shape[1], x.shape[2]
        P, Q = y.shape[2:]

        # locate
        tiles_q = (Q + THREADS_X - 1) // THREADS_X
        p = (cuda.blockIdx.x // tiles_q * THREADS_Y + cuda.threadIdx.y) * ROWS
        q = cuda.blockIdx.x % tiles_q * THREADS_X + cuda.threadIdx.x
        k, n = cuda.blockIdx.y, cuda.blockIdx.z
        if p + ROWS <= P and q < Q:
            # multiply
            for i in range(ROWS):
                acc[i] = float32(0.0)
            for c in range(C):
                for s in range(S):
                    for i in range(COLUMN):
                        column[i] = x[n, c, p + i, q + s]
                    for r in range(R):
                        for i in range(ROWS):
                            acc[i] += column[i + r] * filt[k, c, r, s]

            # store
            for i in range(ROWS):
                y[n, k, p + i, q] = acc[i]

    return conv2d_rows_beyond


def launch(x, filt, y):
    N, K, P, Q = y.shape
    tiles = -(-P // (THREADS_Y * ROWS)) * -(-Q // THREADS_X)
    specialise(*filt.shape[2:])[(tiles, K, N), (THREADS_X, THREADS_Y)](x, filt, y)
