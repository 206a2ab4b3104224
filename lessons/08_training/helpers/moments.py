"""Mean and variance of each column of y, as batch norm wants them: in a convolution's kernel, or in one of its own.

What is added up are distances from one of the values, the shift (Chan, Golub and LeVeque, 1983): epilogues.md has the
formulas, and how sets become one. The order follows from the shape alone: the same y gives the same bits.
"""

from functools import lru_cache
from importlib import import_module
from math import prod

import numpy as np
from numba import cuda, float32, int64, uint32

from lessons.toolkit.grid import add_up
from lessons.toolkit.memory import load2, shared_array, store2
from lessons.toolkit.narrow import narrow
from lessons.toolkit.unroll import inlined, unroll, unrolled

epilogues = import_module("lessons.08_training.helpers.epilogues")

THREADS_X, THREADS_Y = 32, 8  # of a kernel of its own: columns, and rows at a time
LEAST_ROWS = 32  # of a block
BLOCKS = 1024  # that keep a large GPU busy
BLOCK_SETS = THREADS_X * THREADS_Y
# Bits of their number in which lanes differ that share columns, by the rows of a warp: lesson 05's, and mma.sync's
SHARING = {4: (1, 16), 8: (4, 8, 16)}
# Of the kernel that merges what the blocks leave
MERGED = 2  # columns of a block
LANES = 128  # threads that share a column
AT_ONCE = 8  # rows that a thread reads before it merges them
JOINED = 8  # sets that a thread merges next
MERGING, READ = LANES * MERGED, 2 * AT_ONCE
SHIFT, COUNT, TOTAL, SQUARE, M2, HELD = range(6)  # what is held of sets that become one; how many values


def workspace_size(shape):
    """float32 values that the blocks' means and M2 of y [..., K] take, side by side."""
    return 2 * -(-prod(shape[:-1]) // LEAST_ROWS) * shape[-1]


def moment_workspace(shape):
    """Device memory for them."""
    return cuda.device_array(workspace_size(shape), np.float32)


class ColumnMoments:
    """moments [2, K] = mean and variance (divided by the count) of the columns of y, before y is rounded, beside y.

    Blocks leave theirs in `partials`, of :func:`moment_workspace`; a second kernel merges those. Both are float32.
    """

    def __init__(self, moments, partials):
        self.moments, self.operands = moments, (partials,)

    def check(self, y):
        """Raise ValueError where an array does not fit y [N, O, P, Q, K]."""
        shape, float32s = tuple(y.shape), [np.float32]
        epilogues.require("ColumnMoments", "moments", self.moments, (2, shape[4]), float32s)
        epilogues.require("ColumnMoments", "partials", self.operands[0], (workspace_size(shape),), float32s)

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
            add_up(partials, y.reshape(y.size))
            moments_of_columns(rows, self.operands[0], self.moments)


# --- sets become one ---


@inlined
def begin(held, count, mean, m2):
    """The first set: its mean is the shift."""
    held[SHIFT], held[COUNT], held[M2] = mean, count, m2
    held[TOTAL], held[SQUARE] = float32(0.0), float32(0.0)


@inlined
def add(held, count, mean, m2):
    """One set more."""
    off = mean - held[SHIFT]
    held[COUNT] += count
    held[TOTAL] += count * off
    held[SQUARE] += count * off * off
    held[M2] += m2


@inlined
def end(held):
    """held[SHIFT] and held[M2] become mean and M2 of all sets."""
    off = held[TOTAL] * (float32(1.0) / max(held[COUNT], float32(1.0)))
    held[SHIFT] += off
    held[M2] += held[SQUARE] - held[TOTAL] * off


# --- in a convolution's kernel ---


@lru_cache
def over_columns(BLOCK_M, BLOCK_N, ROWS, ROW_STEP, GROUPS, GROUP_STEP, WIDTH, TOGETHER):
    """Device function that leaves mean and M2 of a tile's columns; see epilogues.over_sums for a thread's sums."""
    GROUP, COLUMNS = TOGETHER * WIDTH, GROUPS * WIDTH
    ROW = GROUPS * GROUP
    SPAN = ROWS * ROW_STEP  # rows of a warp
    WARPS = BLOCK_M // SPAN  # that share a column
    BITS = SHARING[ROW_STEP]
    STEPS = len(BITS)
    KEPT = COLUMNS >> STEPS  # columns of a lane in the end
    SETS, SHARE = max(2, (WARPS - 1) * BLOCK_N * 2), 1 / ROWS

    @inlined
    @narrow
    def place(c):
        """How far the thread's column c lies from its first."""
        return c // WIDTH * GROUP_STEP + c % WIDTH

    @inlined
    @unroll
    def repeat_first(acc, first, rows):
        """Sums of a thread's column, from acc[first] on, become the first one where they lie beyond its `rows`."""
        for row in unrolled(ROWS - 1):
            if row + 1 >= rows:
                acc[first + (row + 1) // TOGETHER * ROW + (row + 1) % TOGETHER * WIDTH] = acc[first]

    @inlined
    @unroll
    def describe(means, squares, c, acc, first, share):
        """Mean and M2 of a thread's column c, from acc[first] on; `share` is 1 / its rows."""
        shift, total, square = acc[first], float32(0.0), float32(0.0)
        for row in unrolled(ROWS - 1):
            off = acc[first + (row + 1) // TOGETHER * ROW + (row + 1) % TOGETHER * WIDTH] - shift
            total += off
            square += off * off
        means[c], squares[c] = shift + total * share, square - total * (total * share)

    @inlined
    def exchange(means, squares, c, other, upper, bit, share, weight):
        """Column c, or the other one in an upper lane, merged with the partner's set; it becomes column c."""
        mean, given = means[other] if upper else means[c], means[c] if upper else means[other]
        m2, given_m2 = squares[other] if upper else squares[c], squares[c] if upper else squares[other]
        off = cuda.shfl_xor_sync(0xFFFFFFFF, given, bit) - mean
        means[c] = mean + off * share
        squares[c] = m2 + cuda.shfl_xor_sync(0xFFFFFFFF, given_m2, bit) + off * off * weight

    @inlined
    @narrow
    @unroll
    def finish(acc, m, n, GEMM_M, GEMM_N, operands):
        sets = shared_array(SETS)
        means, squares = cuda.local.array(COLUMNS, float32), cuda.local.array(COLUMNS, float32)
        shares, weights = cuda.local.array(STEPS, float32), cuda.local.array(STEPS, float32)
        pair, held = cuda.local.array(2, float32), cuda.local.array(HELD, float32)
        partials = operands[0]
        block, row, column = uint32(m) // BLOCK_M, uint32(m) % BLOCK_M, uint32(n) % BLOCK_N
        warp, first_n, left = row // SPAN, uint32(n) - column, min(uint32(GEMM_M) - block * BLOCK_M, BLOCK_M)
        share = float32(SHARE)
        for step in range(STEPS):
            shares[step], weights[step] = float32(0.5), float32(ROWS << step) * float32(0.5)
        if left < BLOCK_M:
            after = int64(left) - warp * SPAN - row % ROW_STEP  # rows of y from the thread's first on
            rows = min((max(after, 0) + (ROW_STEP - 1)) // ROW_STEP, ROWS)
            count, share = float32(rows), float32(1.0) / float32(max(rows, 1))
            for c in unrolled(COLUMNS):
                repeat_first(acc, int64(c // WIDTH * GROUP + c % WIDTH), rows)
            for step in unrolled(STEPS):
                theirs = cuda.shfl_xor_sync(0xFFFFFFFF, count, BITS[step])
                shares[step] = theirs / max(count + theirs, float32(1.0))
                weights[step] = count * shares[step]
                count += theirs
        for c in unrolled(COLUMNS):
            describe(means, squares, int64(c), acc, int64(c // WIDTH * GROUP + c % WIDTH), share)

        kept = 0  # the first column that the lane keeps
        for step in unrolled(STEPS):
            upper = cuda.laneid & BITS[step] != 0
            for c in unrolled(COLUMNS >> (step + 1)):
                higher = int64(c + (COLUMNS >> (step + 1)))
                exchange(means, squares, int64(c), higher, upper, BITS[step], shares[step], weights[step])
            kept += COLUMNS >> (step + 1) if upper else 0

        if warp > 0:
            for k in unrolled(KEPT):
                at = column + place(kept + k)
                pair[0], pair[1] = means[k], squares[k]
                store2(sets, 2 * ((warp - 1) * BLOCK_N + at), pair, 0)
        cuda.syncthreads()
        if warp == 0:
            for k in unrolled(KEPT):
                at = column + place(kept + k)
                begin(held, float32(min(left, SPAN)), means[k], squares[k])
                for other in range(1, WARPS):
                    load2(pair, 0, sets, 2 * ((other - 1) * BLOCK_N + at))
                    add(held, float32(min(max(int64(left) - other * SPAN, 0), SPAN)), pair[0], pair[1])
                end(held)
                pair[0], pair[1] = held[SHIFT], held[M2]
                if first_n + at < GEMM_N:
                    store2(partials, 2 * (int64(block) * GEMM_N + first_n + at), pair, 0)

    return finish


# --- merging ---


@inlined
@narrow
def join(held, counts, means, squares, first, step, number):
    """Merge `number` sets, every `step`-th one from the first on."""
    begin(held, counts[first], means[first], squares[first])
    for i in range(1, number):
        at = first + i * step
        add(held, counts[at], means[at], squares[at])
    end(held)


@cuda.jit
@narrow
def merge_partials(partials, rows, height, last, moments):
    """moments of the first `rows` rows of partials, of `height` rows of y each, but the last of `last`."""
    counts, means = cuda.shared.array(MERGING, float32), cuda.shared.array(MERGING, float32)
    squares = cuda.shared.array(MERGING, float32)
    held, read = cuda.local.array(HELD, float32), cuda.local.array(READ, float32)
    thread, K = cuda.threadIdx.x, uint32(moments.shape[1])
    n = cuda.blockIdx.x * MERGED + thread % MERGED
    column, lane, end_row = min(n, K - 1), thread // MERGED, rows - 1
    begin(held, float32(0.0), partials[2 * (int64(min(lane, end_row)) * K + column)], float32(0.0))
    for first in range(lane, rows, LANES * AT_ONCE):
        for i in range(AT_ONCE):
            row = min(first + i * LANES, end_row)
            load2(read, 2 * i, partials, 2 * (int64(row) * K + column))
        for i in range(AT_ONCE):
            row = first + i * LANES
            if row <= end_row:
                add(held, last if row == end_row else height, read[2 * i], read[2 * i + 1])
    end(held)
    counts[thread], means[thread], squares[thread] = held[COUNT], held[SHIFT], held[M2]
    cuda.syncthreads()
    at = thread // MERGED * (JOINED * MERGED) + thread % MERGED
    if thread < MERGING // JOINED:
        join(held, counts, means, squares, at, MERGED, JOINED)
        counts[at], means[at], squares[at] = held[COUNT], held[SHIFT], held[M2]  # nobody else has read these
    cuda.syncthreads()
    if thread < MERGED and n < K:
        join(held, counts, means, squares, thread, JOINED * MERGED, LANES // JOINED)
        moments[0, n], moments[1, n] = held[SHIFT], held[M2] / held[COUNT]


def merge_rows(partials, M, height, moments):
    """moments = mean and variance, from mean and M2 of `height` rows each of a y of M rows."""
    rows, blocks = -(-M // height), -(-moments.shape[1] // MERGED)
    last = np.float32(M - (rows - 1) * height)
    merge_partials[blocks, MERGING](partials, np.uint32(rows), np.float32(height), last, moments)


# --- a kernel of its own ---


@cuda.jit
def column_moments(y, height, partials):
    """Mean and M2 of each column of `height` rows of y."""
    counts, means = cuda.shared.array(BLOCK_SETS, float32), cuda.shared.array(BLOCK_SETS, float32)
    squares = cuda.shared.array(BLOCK_SETS, float32)
    held = cuda.local.array(HELD, float32)
    M, K = y.shape
    blocks_n = (K + THREADS_X - 1) // THREADS_X
    n0, block = cuda.blockIdx.x % blocks_n * THREADS_X, cuda.blockIdx.x // blocks_n
    x, first = cuda.threadIdx.x % THREADS_X, cuda.threadIdx.x // THREADS_X
    m0, n = block * int64(height), n0 + x
    begin(held, float32(0.0), float32(y[min(m0 + first, M - 1), min(n, K - 1)]), float32(0.0))
    if n < K:
        for m in range(m0 + first, min(m0 + height, M), THREADS_Y):
            add(held, float32(1.0), float32(y[m, n]), float32(0.0))
    end(held)
    thread = cuda.threadIdx.x
    counts[thread], means[thread], squares[thread] = held[COUNT], held[SHIFT], held[M2]
    cuda.syncthreads()
    if first == 0 and n < K:
        join(held, counts, means, squares, x, THREADS_X, THREADS_Y)
        partials[2 * (block * K + n)], partials[2 * (block * K + n) + 1] = held[SHIFT], held[M2]


def moments_of_columns(y, partials, moments):
    """moments = mean and variance of y's columns, [M, K] of float32 or float16; `partials` is of moment_workspace."""
    M, K = y.shape
    blocks_n = -(-K // THREADS_X)
    height = max(LEAST_ROWS, -(-M * blocks_n // BLOCKS))
    column_moments[-(-M // height) * blocks_n, BLOCK_SETS](y, height, partials)
    merge_rows(partials, M, height, moments)
