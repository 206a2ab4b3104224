"""Column sums: sums[n] = sum of y[m, n] over m, the bias gradient where y is the output's gradient.

Blocks add up some rows each and leave their sums in `partials`; a second kernel adds those up. Both add in an order
that the shape alone decides, so that the same y gives the same bits; atomics would add in the order of arrival.
"""

from functools import lru_cache
from math import prod

import numpy as np
from numba import cuda, float32, int64

from lessons.toolkit.memory import VECTOR, aligned, load4

THREADS = 256
LEAST_ROWS = 32  # of y, to one row of partial sums
BLOCKS = 1024  # that keep a large GPU busy
SUMMED = 8  # columns of a block that adds up partial sums: 32 bytes of a row


def workspace_size(shape):
    """float32 values that partial column sums of y [..., K] take, however many rows a block adds up."""
    return -(-prod(shape[:-1]) // LEAST_ROWS) * shape[-1]


def column_workspace(shape):
    """Device memory for partial column sums of y of this shape."""
    return cuda.device_array(workspace_size(shape), np.float32)


@lru_cache
def adder(WIDTH, THREADS_X):
    """Kernel: a row of partial sums for each `height` rows of y; threads read WIDTH neighbours, four at once."""
    THREADS_Y, COLUMNS = THREADS // THREADS_X, THREADS_X * WIDTH
    PARTS = THREADS_Y * COLUMNS

    @cuda.jit
    def add_columns(y, height, partials):
        parts = cuda.shared.array(PARTS, float32)
        total = cuda.local.array(WIDTH, float32)
        values = cuda.local.array(VECTOR, float32)
        M, K = y.shape
        blocks_n = (K + COLUMNS - 1) // COLUMNS
        n0, m0 = cuda.blockIdx.x % blocks_n * COLUMNS, cuda.blockIdx.x // blocks_n * int64(height)
        x, first = cuda.threadIdx.x % THREADS_X, cuda.threadIdx.x // THREADS_X
        n = n0 + x * WIDTH
        for v in range(WIDTH):
            total[v] = float32(0.0)
        if n < K:
            for m in range(m0 + first, min(m0 + height, M), THREADS_Y):
                if WIDTH == VECTOR:
                    load4(values, 0, y, m * K + n)
                else:
                    values[0] = y[m, n]
                for v in range(WIDTH):
                    total[v] += values[v]
        for v in range(WIDTH):
            parts[first * COLUMNS + x * WIDTH + v] = total[v]
        cuda.syncthreads()
        for column in range(cuda.threadIdx.x, COLUMNS, THREADS):
            if n0 + column < K:
                summed = float32(0.0)
                for i in range(THREADS_Y):
                    summed += parts[i * COLUMNS + column]
                partials[m0 // height * K + n0 + column] = summed

    return add_columns


@lru_cache
def row_adder(LANES):
    """Kernel: sums[n] = sum of partials[row, n], LANES threads to a column, each with every LANES-th row."""
    PARTS = LANES * SUMMED

    @cuda.jit
    def add_partial_rows(partials, rows, sums):
        parts = cuda.shared.array(PARTS, float32)
        thread = cuda.threadIdx.x
        K = sums.size
        n = cuda.blockIdx.x * SUMMED + thread % SUMMED
        total = float32(0.0)
        if n < K:
            for row in range(thread // SUMMED, rows, LANES):
                total += partials[row * K + n]
        parts[thread] = total
        cuda.syncthreads()
        if thread < SUMMED and n < K:
            total = float32(0.0)
            for lane in range(LANES):
                total += parts[lane * SUMMED + thread]
            sums[n] = total

    return add_partial_rows


def sum_columns(y, partials, sums):
    """sums = the column sums of y [M, K], both float32; `partials` is of column_workspace([M, K])."""
    M, K = y.shape
    width = VECTOR if aligned(y) else 1
    threads_x = next((x for x in (8, 16) if x * width >= K), 32)
    blocks_n = -(-K // (threads_x * width))
    height = max(LEAST_ROWS, -(-M * blocks_n // BLOCKS))
    rows = -(-M // height)
    adder(width, threads_x)[rows * blocks_n, THREADS](y, height, partials)
    lanes = 128 if rows > 128 else 16
    row_adder(lanes)[-(-K // SUMMED), lanes * SUMMED](partials, rows, sums)
