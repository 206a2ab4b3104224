"""Mean and variance of each column of y, as batch norm wants them: in a convolution's kernel, or in one of its own.

A sum of squares less the square of the sum loses all its digits where the mean is large. So a block takes the mean of
its rows first, and then adds up squares of distances from it, M2. Means and M2 of two sets of rows merge (Chan, Golub
and LeVeque, 1979):

    d = mean_b - mean_a        mean = mean_a + d * b / (a + b)        M2 = M2_a + M2_b + d * d * a * b / (a + b)

All merge in an order that the shape alone decides, so that the same y gives the same bits.
"""

from functools import lru_cache
from importlib import import_module

import numpy as np
from numba import cuda, float32, int64, uint32

from lessons.toolkit.unroll import inlined, unroll, unrolled

columns = import_module("lessons.08_training.helpers.columns")
epilogues = import_module("lessons.08_training.helpers.epilogues")

THREADS_X, THREADS_Y = 32, 8  # of a kernel of its own: columns, and rows at a time
SUMMED = 8  # columns of a block that merges
LANES = 64  # threads that share a column there
PARTS = LANES * SUMMED
BLOCK_PARTS = THREADS_X * THREADS_Y


def moment_workspace(shape):
    """Device memory for the blocks' means and M2 of y [..., K]: two arrays, one behind the other."""
    return cuda.device_array(2 * columns.workspace_size(shape), np.float32)


class ColumnMoments:
    """moments[0, n], moments[1, n] = mean and variance (divided by the count) of y[m, n] over m, beside y.

    Blocks leave mean and M2 of their rows in `partials`, of :func:`moment_workspace`; a second kernel merges those.
    Both arrays are float32. The moments are those of the sums before they are rounded to y's type.
    """

    def __init__(self, moments, partials):
        self.moments, self.operands = moments, (partials,)

    def check(self, y):
        """Raise ValueError where an array does not fit y [N, O, P, Q, K]."""
        shape, float32s = tuple(y.shape), [np.float32]
        epilogues.require("ColumnMoments", "moments", self.moments, (2, shape[4]), float32s)
        size = 2 * columns.workspace_size(shape)
        epilogues.require("ColumnMoments", "partials", self.operands[0], (size,), float32s)

    def hooks(self, y, **where):
        """For `specialise`: what is done to a thread's sums."""
        self.check(y)
        self.block_m = where["BLOCK_M"]
        return {"finish": over_columns(**where)}

    def stores(self, y):
        """y is float32, as the kernel writes it."""
        if y.dtype != np.float32:
            raise ValueError(f"ColumnMoments: y is of {y.dtype}; allowed: float32, if the kernel computes in float32")
        return {}

    def complete(self, partials, y):
        """Merge what the blocks left; where blocks share a tile, add up y first."""
        rows = epilogues.matrix(y)
        if partials is None:
            merge_rows(self.operands[0], rows.shape[0], self.block_m, self.moments)
        else:
            self.stores(y)
            epilogues.add_up(partials, y.reshape(y.size))
            moments_of_columns(rows, self.operands[0], self.moments)


@lru_cache
def over_columns(BLOCK_M, BLOCK_N, ROWS, ROW_STEP, GROUPS, GROUP_STEP, WIDTH, TOGETHER):
    """Device function that leaves mean and M2 of a tile's columns; see epilogues.over_sums for a thread's sums."""
    GROUP = TOGETHER * WIDTH
    ROW, COLUMNS = GROUPS * GROUP, GROUPS * WIDTH
    HEIGHT = BLOCK_M // ROWS  # threads that share a column
    SIZE, SPAN = HEIGHT * BLOCK_N, ROWS * ROW_STEP

    @inlined
    @unroll
    def add_column(acc, first, m, GEMM_M, mean, squared):
        """The distances from `mean` in a thread's column that begins at acc[first], or their squares, added up; rows
        from GEMM_M on are left out."""
        total = float32(0.0)
        for row in unrolled(ROWS):
            at = first + row // TOGETHER * ROW + row % TOGETHER * WIDTH
            off = acc[at] - mean if uint32(m + uint32(row * ROW_STEP)) < GEMM_M else float32(0.0)
            total += off * off if squared else off
        return total

    @inlined
    def add_threads(parts, c):
        """The sum of what the threads of column c have put into `parts`."""
        total = float32(0.0)
        for i in range(HEIGHT):
            total += parts[i * BLOCK_N + c]
        return total

    @inlined
    @unroll
    def finish(acc, m, n, GEMM_M, GEMM_N, operands):
        parts = cuda.shared.array(SIZE, float32)
        means = cuda.shared.array(BLOCK_N, float32)
        partials = operands[0]
        row, column = uint32(int64(m) % BLOCK_M), uint32(int64(n) % BLOCK_N)
        own = (row // SPAN * ROW_STEP + row % ROW_STEP) * BLOCK_N + column
        m0, n0 = int64(m) - int64(row), int64(n) - int64(column)
        at = m0 // BLOCK_M * GEMM_N + n0
        count = float32(min(int64(BLOCK_M), int64(GEMM_M) - m0))
        for c in unrolled(COLUMNS):
            first = int64(c // WIDTH * GROUP + c % WIDTH)
            place = c // WIDTH * GROUP_STEP + c % WIDTH
            parts[own + place] = add_column(acc, first, uint32(m), uint32(GEMM_M), float32(0.0), False)
        cuda.syncthreads()
        for c in range(cuda.threadIdx.x, BLOCK_N, cuda.blockDim.x):
            means[c] = add_threads(parts, c) / count
            if n0 + c < GEMM_N:
                partials[at + c] = means[c]
        cuda.syncthreads()
        for c in unrolled(COLUMNS):
            first = int64(c // WIDTH * GROUP + c % WIDTH)
            place = c // WIDTH * GROUP_STEP + c % WIDTH
            mean = means[column + place]
            parts[own + place] = add_column(acc, first, uint32(m), uint32(GEMM_M), mean, True)
        cuda.syncthreads()
        for c in range(cuda.threadIdx.x, BLOCK_N, cuda.blockDim.x):
            if n0 + c < GEMM_N:
                partials[partials.size // 2 + at + c] = add_threads(parts, c)

    return finish


# --- merging ---


@inlined
def merge(held, count, mean, m2):
    """Merge `count` rows with their mean and M2 into held: count, mean, M2."""
    both = held[0] + count
    if count > float32(0.0):
        off = mean - held[1]
        held[1] += off * (count / both)
        held[2] += m2 + off * off * (held[0] * (count / both))
        held[0] = both


@cuda.jit
def merge_partials(partials, rows, M, height, moments):
    """moments of the first `rows` rows of partials, of `height` rows of y each, the last of fewer."""
    counts = cuda.shared.array(PARTS, float32)
    means = cuda.shared.array(PARTS, float32)
    squares = cuda.shared.array(PARTS, float32)
    held = cuda.local.array(3, float32)
    thread = cuda.threadIdx.x
    K = moments.shape[1]
    n = cuda.blockIdx.x * SUMMED + thread % SUMMED
    for i in range(3):
        held[i] = float32(0.0)
    if n < K:
        for row in range(thread // SUMMED, rows, LANES):
            count = float32(min(int64(height), M - row * int64(height)))
            merge(held, count, partials[row * K + n], partials[partials.size // 2 + row * K + n])
    counts[thread], means[thread], squares[thread] = held[0], held[1], held[2]
    cuda.syncthreads()
    if thread < SUMMED and n < K:
        for lane in range(1, LANES):
            at = lane * SUMMED + thread
            merge(held, counts[at], means[at], squares[at])
        moments[0, n], moments[1, n] = held[1], held[2] / held[0]


def merge_rows(partials, M, height, moments):
    """moments = mean and variance, from mean and M2 of `height` rows each of a y of M rows."""
    blocks = -(-moments.shape[1] // SUMMED)
    merge_partials[blocks, PARTS](partials, -(-M // height), M, height, moments)


# --- a kernel of its own ---


@cuda.jit
def column_moments(y, height, partials):
    """Mean and M2 of each column of `height` rows of y; a thread's distances are from its first element."""
    counts = cuda.shared.array(BLOCK_PARTS, float32)
    means = cuda.shared.array(BLOCK_PARTS, float32)
    squares = cuda.shared.array(BLOCK_PARTS, float32)
    held = cuda.local.array(3, float32)
    M, K = y.shape
    blocks_n = (K + THREADS_X - 1) // THREADS_X
    n0, block = cuda.blockIdx.x % blocks_n * THREADS_X, cuda.blockIdx.x // blocks_n
    x, first = cuda.threadIdx.x % THREADS_X, cuda.threadIdx.x // THREADS_X
    m0, n = block * int64(height), n0 + x
    for i in range(3):
        held[i] = float32(0.0)
    if n < K and m0 + first < M:
        shift = float32(y[m0 + first, n])
        total, square, count = float32(0.0), float32(0.0), float32(0.0)
        for m in range(m0 + first, min(m0 + height, M), THREADS_Y):
            off = float32(y[m, n]) - shift
            total += off
            square += off * off
            count += float32(1.0)
        held[0], held[1], held[2] = count, shift + total / count, square - total * (total / count)
    thread = cuda.threadIdx.x
    counts[thread], means[thread], squares[thread] = held[0], held[1], held[2]
    cuda.syncthreads()
    if first == 0 and n < K:
        for i in range(1, THREADS_Y):
            at = i * THREADS_X + x
            merge(held, counts[at], means[at], squares[at])
        partials[block * K + n] = held[1]
        partials[partials.size // 2 + block * K + n] = held[2]


def moments_of_columns(y, partials, moments):
    """moments = mean and variance of y's columns, [M, K] of float32 or float16; `partials` is of moment_workspace."""
    M, K = y.shape
    blocks_n = -(-K // THREADS_X)
    height = max(columns.LEAST_ROWS, -(-M * blocks_n // columns.BLOCKS))
    column_moments[-(-M // height) * blocks_n, BLOCK_PARTS](y, height, partials)
    merge_rows(partials, M, height, moments)
