"""conv3d_implicit_gemm_fast_division: conv3d_implicit_gemm whose divisions are a multiplication and two shifts.

Variant of: conv3d_implicit_gemm
New idea: the divisors are extents, the same for all threads and known before the launch. So the host works out, once
    for each, a multiplier and two shifts that divide any 32-bit number by it (Granlund and Montgomery, PLDI 1994;
    Hacker's Delight, chapter 10). CUTLASS does so in its FastDivmod. The loads still work out every coordinate: this
    stands between the step and conv3d_implicit_gemm_precomputed, which needs no coordinates.
Loads per FMA: as before; a division takes 5 instructions instead of about 20.
Run: python -m lessons.05_implicit_gemm conv3d_implicit_gemm_fast_division
"""

from functools import lru_cache
from math import gcd
from typing import NamedTuple

import numpy as np
from numba import cuda, float32, int32, int64, uint32, uint64

from lessons.toolkit.grid import add_up, choose, jit, partial_outputs
from lessons.toolkit.memory import (
    VECTOR,
    aligned,
    copy1_or_zero,
    copy4_or_zero,
    load4,
    shared_array,
    store4,
    wait_async,
)
from lessons.toolkit.unroll import inlined, unroll, unrolled

LANES_M, LANES_N = 4, 8  # the 32 lanes of a warp, as rows and columns
# What a full GPU reaches with a tile, as a share of the best, and the tile. BLOCKS_PER_SM leaves each thread at most
# 65536 / threads / BLOCKS_PER_SM registers
TILES = (
    (1.00, {"BLOCK_M": 96, "BLOCK_N": 128, "THREAD_M": 12, "THREAD_N": 8, "BLOCKS_PER_SM": 2}),
    (0.90, {"BLOCK_M": 64, "BLOCK_N": 64, "THREAD_M": 8, "THREAD_N": 8, "BLOCKS_PER_SM": 6}),
    (0.50, {"BLOCK_M": 32, "BLOCK_N": 32, "THREAD_M": 8, "THREAD_N": 4, "BLOCKS_PER_SM": 16}),
)
BLOCK_K, NARROW_BLOCK_K = 16, 8  # the latter where values are copied one by one, four times as many copies
GROUP_M = 8  # rows of blocks that run together and share filters in L2
TUNABLES = {
    "BLOCK_M": (32, 64, 96, 128),
    "BLOCK_N": (32, 64, 128),
    "BLOCK_K": (8, 16),
    "THREAD_M": (8, 12, 16),
    "THREAD_N": (4, 8),
    "BLOCKS_PER_SM": (2, 3, 4, 6, 16),
    "GROUP_M": (1, 8),
    "SPLIT_K": (1, 2, 3, 4, 6, 8, 16),
}
SHARED_BYTES = 49152


@lru_cache
def plan(GEMM_M, GEMM_N, GEMM_K, C):
    """The tile for a matrix product of this size, of windows with C channels."""
    block_k = NARROW_BLOCK_K if C % VECTOR else BLOCK_K
    return {**choose(TILES, GEMM_M, GEMM_N, GEMM_K), "BLOCK_K": block_k, "GROUP_M": GROUP_M}


def shipped(problem):
    """The tile that the problem runs with unless another is asked for."""
    return plan(problem.N * problem.O * problem.P * problem.Q, problem.K, problem.reduction, problem.C)


class Divisor(NamedTuple):
    """What divides a 32-bit number by `value`: see `divide`."""

    value: np.uint32
    multiplier: np.uint32
    first_shift: np.uint32
    second_shift: np.uint32


@lru_cache
def divisor(value):
    """The constants for a divisor of 32 bits. 2**32 + multiplier, over 2**bits, is just above 2**32 / value."""
    bits = (value - 1).bit_length()  # 2**bits is the first power of two from the divisor on
    multiplier = 2**32 * (2**bits - value) // value + 1
    return Divisor(*map(np.uint32, (value, multiplier, min(bits, 1), max(bits - 1, 0))))


@lru_cache
def specialise(wide, wide_y, BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N, BLOCKS_PER_SM, GROUP_M):
    """Build the kernel; `wide` and `wide_y` promise 128-bit access to x and filt, and to y."""
    WARP_M, WARP_N = LANES_M * THREAD_M, LANES_N * THREAD_N
    if BLOCK_M % WARP_M or BLOCK_N % WARP_N or THREAD_N % VECTOR:
        raise ValueError(f"{BLOCK_M=} {BLOCK_N=} must be multiples of {WARP_M=} {WARP_N=}")
    WARPS_N = BLOCK_N // WARP_N
    THREADS = BLOCK_M // WARP_M * WARPS_N * 32
    registers = min(255, 65536 // (THREADS * BLOCKS_PER_SM))
    if THREADS > 1024 or registers < THREAD_M * THREAD_N + THREAD_N * VECTOR + VECTOR:
        raise ValueError(f"{THREAD_M=} {THREAD_N=} {BLOCKS_PER_SM=}: more than {registers=} for each of {THREADS=}")
    PIECE = VECTOR if wide else 1  # values copied at a time
    COLUMNS = BLOCK_K // PIECE  # pieces in a row of either tile
    ROWS = THREADS // COLUMNS  # rows copied at a time
    if BLOCK_K % VECTOR or THREADS % COLUMNS or BLOCK_M % ROWS or BLOCK_N % ROWS:
        raise ValueError(f"{BLOCK_M=} {BLOCK_N=} {BLOCK_K=} do not divide among {THREADS=}")
    GROUP = gcd(8, ROWS)  # of 8 rows, as many as fill the 32 banks are copied together
    TOGETHER = min(GROUP, max(1, 32 // BLOCK_K))
    APART = GROUP // TOGETHER
    A_TURNS, B_TURNS = BLOCK_M // ROWS, BLOCK_N // ROWS
    PARTS = BLOCK_K // VECTOR  # the multiplication, and with it the copy, goes on in parts of four k
    STRIDE = BLOCK_K + VECTOR  # padded: rows start on 16-byte boundaries, neighbours in different banks
    A_SIZE, SIZE = BLOCK_M * STRIDE, (BLOCK_M + BLOCK_N) * STRIDE
    BOTH = 2 * SIZE
    needed = 4 * BOTH
    if needed > SHARED_BYTES:
        raise ValueError(f"{BLOCK_M=} {BLOCK_N=} {BLOCK_K=}: two pairs of tiles take {needed} bytes, {SHARED_BYTES=}")
    B_FRAG, ACC = THREAD_N * VECTOR, THREAD_M * THREAD_N
    copy_or_zero = copy4_or_zero if wide else copy1_or_zero

    @inlined
    def divide(number, by):
        """number // by.value: (number * (2**32 + multiplier)) >> (32 + bits), which takes 33 bits, in 32."""
        high = uint32((uint64(number) * uint64(by.multiplier)) >> uint64(32))
        return uint32(uint32(high + (uint32(number - high) >> by.first_shift)) >> by.second_shift)

    @inlined
    def digits(number, first, second, third):
        """The number's digits in a mixed base, lowest first."""
        high = divide(number, first)
        higher = divide(high, second)
        highest = divide(higher, third)
        low, middle = number - high * first.value, high - higher * second.value
        upper = higher - highest * third.value
        return int32(low), int32(middle), int32(upper), int32(highest)

    @inlined
    def filter_of(row):
        """Which filter a row of b_tile holds: lanes read neighbouring rows, and yet each owns filters in fours."""
        j = row % WARP_N // LANES_N
        return row // WARP_N * WARP_N + j // VECTOR * VECTOR * LANES_N + row % LANES_N * VECTOR + j % VECTOR

    @inlined
    def copied_row(thread):
        """The row of either tile that a thread copies: neighbouring rows, padded as they are, would share banks."""
        row = thread // COLUMNS
        return row // GROUP * GROUP + row % GROUP // TOGETHER + row % TOGETHER * APART

    @inlined
    @unroll
    def copy_part(part, x, filt, rows, geometry, m0, n0, c, s, r, t, tiles, start):
        """A part of the next pair of tiles, on its way without waiting; what lies outside becomes zero."""
        N, D, H, W, C = x.shape
        K, T, R, S, _ = filt.shape
        row = copied_row(uint32(cuda.threadIdx.x))
        to = start + row * STRIDE + uint32(cuda.threadIdx.x) % COLUMNS * PIECE
        for turn in unrolled(A_TURNS):
            if turn % PARTS == part:
                q, p, o, n = digits(uint32(m0 + row + turn * ROWS), rows[0], rows[1], rows[2])
                d = o * geometry.stride_d - geometry.pad_d + t * geometry.dilation_d
                h = p * geometry.stride_h - geometry.pad_h + r * geometry.dilation_h
                w = q * geometry.stride_w - geometry.pad_w + s * geometry.dilation_w
                inside = n < N and t < T and 0 <= d < D and 0 <= h < H and 0 <= w < W
                copy_or_zero(tiles, to + turn * ROWS * STRIDE, x, (((n * D + d) * H + h) * W + w) * C + c, inside)
        for turn in unrolled(B_TURNS):
            if turn % PARTS == part:
                k = n0 + filter_of(row + turn * ROWS)
                inside = k < K and t < T
                to_b = to + A_SIZE + turn * ROWS * STRIDE
                copy_or_zero(tiles, to_b, filt, (((k * T + t) * R + r) * S + s) * C + c, inside)

    @inlined
    @unroll
    def multiply_part(k, thread_m, thread_n, tiles, a_frag, b_frag, acc):
        """The products of four k."""
        for j in range(THREAD_N):
            load4(b_frag, j * VECTOR, tiles, k + A_SIZE + (thread_n + j * LANES_N) * STRIDE)
        for i in unrolled(THREAD_M):
            load4(a_frag, 0, tiles, k + (thread_m + i * LANES_M) * STRIDE)
            for v in range(VECTOR):
                for j in range(THREAD_N):
                    acc[i * THREAD_N + j] += a_frag[v] * b_frag[j * VECTOR + v]

    @jit(THREADS, BLOCKS_PER_SM)
    @unroll
    def conv3d_implicit_gemm_fast_division(x, filt, y, outputs, rows, columns, geometry, tiles_k):
        tiles = shared_array(BOTH)
        origin = cuda.shared.array(3, uint32)
        a_frag = cuda.local.array(VECTOR, float32)
        b_frag = cuda.local.array(B_FRAG, float32)
        acc = cuda.local.array(ACC, float32)
        N, D, H, W, C = x.shape
        K, T, R, S, _ = filt.shape
        O, P, Q = outputs
        GEMM_M, GEMM_N = uint32(N * O * P * Q), uint32(K)

        # locate: the block; blocks walk down GROUP_M rows before they move one column to the right
        blocks_m, blocks_n = (GEMM_M + BLOCK_M - 1) // BLOCK_M, (GEMM_N + BLOCK_N - 1) // BLOCK_N
        split, block = cuda.blockIdx.x // (blocks_m * blocks_n), cuda.blockIdx.x % (blocks_m * blocks_n)
        group, place = block // (GROUP_M * blocks_n), block % (GROUP_M * blocks_n)
        height = min(blocks_m - group * GROUP_M, GROUP_M)
        m0 = uint32((group * GROUP_M + place % height) * BLOCK_M)
        n0 = uint32(place // height * BLOCK_N)

        # locate: the thread, which has every LANES_M-th row of its warp's piece of a_tile, every LANES_N-th of b_tile
        thread = uint32(cuda.threadIdx.x)
        warp, lane = thread // 32, thread % 32
        thread_m = warp // WARPS_N * WARP_M + lane // 16 * 2 + lane % 2
        thread_n = warp % WARPS_N * WARP_N + lane // 2 % LANES_N
        gemm_k = uint32(split * tiles_k * BLOCK_K + thread % COLUMNS * PIECE)

        if thread == 0:  # what only the store needs takes no registers meanwhile
            origin[0], origin[1], origin[2] = split, m0, n0
        cuda.syncthreads()

        for i in range(ACC):
            acc[i] = float32(0.0)

        # stage: the first pair of tiles
        start = int64(0)
        c, s, r, t = digits(gemm_k, columns[0], columns[1], columns[2])
        for part in unrolled(PARTS):  # int64(part), as for a literal Numba would compile copy_part once more
            copy_part(int64(part), x, filt, rows, geometry, m0, n0, c, s, r, t, tiles, start)
        wait_async()
        cuda.syncthreads()

        for _ in range(int32(tiles_k)):
            gemm_k = uint32(gemm_k + BLOCK_K)
            c, s, r, t = digits(gemm_k, columns[0], columns[1], columns[2])
            for part in unrolled(PARTS):
                # stage: a part of the next pair; all of it at once would hold up the reads of this one
                copy_part(int64(part), x, filt, rows, geometry, m0, n0, c, s, r, t, tiles, SIZE - start)

                # multiply: four k
                multiply_part(start + part * VECTOR, thread_m, thread_n, tiles, a_frag, b_frag, acc)

            # stage: the next pair is complete once all threads have it in shared memory
            wait_async()
            cuda.syncthreads()
            start = SIZE - start

        # store: SPLIT_K partial outputs, one after another
        split, m0, n0 = origin[0], origin[1], origin[2]
        n = n0 + filter_of(thread_n)
        for i in unrolled(THREAD_M):
            m = m0 + thread_m + i * LANES_M
            at = (int64(split) * GEMM_M + m) * GEMM_N + n
            for j in range(0, THREAD_N, VECTOR):
                if wide_y:
                    if m < GEMM_M and n + j * LANES_N < GEMM_N:
                        store4(y, at + j * LANES_N, acc, i * THREAD_N + j)
                else:
                    for v in range(VECTOR):
                        if m < GEMM_M and n + j * LANES_N + v < GEMM_N:
                            y[at + j * LANES_N + v] = acc[i * THREAD_N + j + v]

    return conv3d_implicit_gemm_fast_division, THREADS


def workspace(problem, **tile):
    """Partial outputs, where SPLIT_K is more than 1."""
    return partial_outputs(problem, {**shipped(problem), **tile}["SPLIT_K"])


def launch(x, filt, y, geometry, partials=None, **tile):
    N, O, P, Q, K = y.shape
    GEMM_M, GEMM_K = N * O * P * Q, filt.size // K
    tile = {**plan(GEMM_M, K, GEMM_K, x.shape[4]), **tile}
    splits = tile.pop("SPLIT_K")
    largest = max(x.size, filt.size, GEMM_M + tile["BLOCK_M"])
    if largest >= 2**32:
        raise ValueError(f"x, filt or a column of y has {largest} elements: 32-bit offsets reach 2**32 of them")
    wide = aligned(x.reshape(x.size // x.shape[4], x.shape[4]), filt.reshape(K * GEMM_K // x.shape[4], x.shape[4]))
    kernel, THREADS = specialise(wide, aligned(y.reshape(GEMM_M, K)), **tile)
    blocks = -(-GEMM_M // tile["BLOCK_M"]) * -(-K // tile["BLOCK_N"])
    tiles_k = -(-GEMM_K // (tile["BLOCK_K"] * splits))
    flat = y.reshape(y.size)
    sums = partials if splits > 1 else flat
    T, R, S, C = filt.shape[1:]
    rows, columns = (tuple(map(divisor, extents)) for extents in ((Q, P, O), (C, S, R)))
    kernel[blocks * splits, THREADS](x, filt, sums, (O, P, Q), rows, columns, geometry, tiles_k)
    if splits > 1:
        add_up(partials, flat)
