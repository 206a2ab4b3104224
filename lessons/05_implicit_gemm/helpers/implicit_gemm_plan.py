"""conv3d_implicit_gemm: its tile for a layer, how threads share it, where sums lie in it, and what iterators are."""

from functools import lru_cache
from math import gcd
from typing import NamedTuple

from numba import int32, uint32

from lessons.toolkit.grid import choose, partials_for
from lessons.toolkit.memory import VECTOR
from lessons.toolkit.pasted import pasted
from lessons.toolkit.unroll import inlined

LANES_M, LANES_N = 4, 8  # the 32 lanes of a warp, as rows and columns
BLOCK_K, NARROW_BLOCK_K = 16, 8  # the latter where values are copied one by one, four times as many copies
GROUP_M = 8  # rows of blocks that run together and share filters in L2
SHARED_BYTES = 49152
TUNABLES = {
    "BLOCK_M": (32, 64, 96, 128), "BLOCK_N": (32, 64, 128), "BLOCK_K": (8, 16), "THREAD_M": (8, 12, 16),
    "THREAD_N": (4, 8), "BLOCKS_PER_SM": (2, 3, 4, 6, 16), "GROUP_M": (1, 8), "SPLIT_K": (1, 2, 3, 4, 6, 8, 16),
}  # fmt: skip


def planned(TILES):
    """Functions of a step that takes one of these tiles: `plan`, and those that the harness calls."""

    @lru_cache
    def plan(GEMM_M, GEMM_N, GEMM_K, C):
        """The tile for a matrix product of this size, of windows with C channels."""
        block_k = NARROW_BLOCK_K if C % VECTOR else BLOCK_K
        return {**choose(TILES, GEMM_M, GEMM_N, GEMM_K), "BLOCK_K": block_k, "GROUP_M": GROUP_M}

    def shipped(problem):
        """The tile that the problem runs with unless another is asked for."""
        return plan(problem.N * problem.O * problem.P * problem.Q, problem.K, problem.reduction, problem.C)

    return plan, shipped, partials_for(shipped)


def layout(remembered, wide, BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N, BLOCKS_PER_SM):
    """What follows from a tile, beside so many words that its iterator remembers; ValueError if no block can have it.

    THREADS, PIECE: values that are copied at a time, COLUMNS: pieces in a row of either tile, ROWS: rows copied at a
    time, STRIDE: from row to row, A_SIZE: of a tile of A, SIZE: of a pair of tiles. Then three device functions.
    """
    WARP_M, WARP_N = LANES_M * THREAD_M, LANES_N * THREAD_N
    if BLOCK_M % WARP_M or BLOCK_N % WARP_N or THREAD_N % VECTOR:
        raise ValueError(f"{BLOCK_M=} {BLOCK_N=} must be multiples of {WARP_M=} {WARP_N=}")
    WARPS_N = BLOCK_N // WARP_N
    THREADS = BLOCK_M // WARP_M * WARPS_N * 32
    registers = min(255, 65536 // (THREADS * BLOCKS_PER_SM))
    if THREADS > 1024 or registers < THREAD_M * THREAD_N + THREAD_N * VECTOR + VECTOR:
        raise ValueError(f"{THREAD_M=} {THREAD_N=} {BLOCKS_PER_SM=}: more than {registers=} for each of {THREADS=}")
    PIECE = VECTOR if wide else 1
    COLUMNS = BLOCK_K // PIECE
    ROWS = THREADS // COLUMNS
    if BLOCK_K % VECTOR or THREADS % COLUMNS or BLOCK_M % ROWS or BLOCK_N % ROWS:
        raise ValueError(f"{BLOCK_M=} {BLOCK_N=} {BLOCK_K=} do not divide among {THREADS=}")
    STRIDE = BLOCK_K + VECTOR  # padded: rows start on 16-byte boundaries, neighbours in different banks
    A_SIZE, SIZE = BLOCK_M * STRIDE, (BLOCK_M + BLOCK_N) * STRIDE
    needed = 4 * (2 * SIZE + remembered)
    if needed > SHARED_BYTES:
        raise ValueError(f"{BLOCK_M=} {BLOCK_N=} {BLOCK_K=}: tiles and rows take {needed} bytes, {SHARED_BYTES=}")
    GROUP = gcd(8, ROWS)  # of 8 rows, as many as fill the 32 banks are copied together
    TOGETHER = min(GROUP, max(1, 32 // BLOCK_K))
    APART = GROUP // TOGETHER

    @pasted
    def first_of_thread(thread):
        """Its first row of a_tile and of b_tile: every LANES_M-th of its warp's piece, every LANES_N-th, follow."""
        warp, lane = thread // 32, thread % 32
        thread_m = warp // WARPS_N * WARP_M + lane // 16 * 2 + lane % 2
        return thread_m, warp % WARPS_N * WARP_N + lane // 2 % LANES_N

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

    return THREADS, PIECE, COLUMNS, ROWS, STRIDE, A_SIZE, SIZE, first_of_thread, filter_of, copied_row


def sums_of_a_thread(BLOCK_M, BLOCK_N, THREAD_M, THREAD_N, **_):
    """Where in a block's tile the sums of a thread lie, as a `finish` is told. Rows and groups are a step apart."""
    return {
        "BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "ROWS": THREAD_M, "ROW_STEP": LANES_M,
        "GROUPS": THREAD_N // VECTOR, "GROUP_STEP": VECTOR * LANES_N, "WIDTH": VECTOR, "TOGETHER": 1,
    }  # fmt: skip


class Layer(NamedTuple):
    """What an iterator is told of a layer."""

    x: object
    filt: object
    outputs: tuple  # O, P, Q
    geometry: object
    extra: object  # what a `launch` has for its own iterator


class Iterator(NamedTuple):
    """Device functions that say where the elements lie that a block copies, and how much they may remember.

    A block has `rows`, words of shared memory, which `begin_row` and `begin_filter` fill once, for each row of
    a_tile and of b_tile. A thread has `here`, words in registers, which `begin_tile` fills for each pair of tiles.
    """

    begin_row: object  # (rows, row, gemm_m, layer)
    begin_filter: object  # (rows, row, gemm_n, layer)
    begin_tile: object  # (here, gemm_k, layer)
    of_x: object  # (rows, row, here, gemm_m, layer): the offset in x, and whether the element is inside
    of_filt: object  # (rows, row, here, gemm_n, gemm_k, layer): the same in filt
    ROWS: int
    HERE: int


@inlined
def digits(number, first, second, third):
    """The number's digits in a mixed base, lowest first."""
    high = uint32(number // uint32(first))
    higher = uint32(high // uint32(second))
    highest = uint32(higher // uint32(third))
    low, middle, upper = number - high * first, high - higher * second, higher - highest * third
    return int32(low), int32(middle), int32(upper), int32(highest)


@inlined
def nothing(rows, row, number, layer):
    pass  # for an iterator that remembers no rows
