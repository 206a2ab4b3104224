"""How the lanes of a warp share the tiles of conv3d_implicit_gemm: which rows a thread copies and multiplies."""

import importlib

from lessons.toolkit.memory import VECTOR, load4
from lessons.toolkit.pasted import pasted
from lessons.toolkit.unroll import inlined, unroll, unrolled

planning = importlib.import_module("lessons.05_implicit_gemm.helpers.implicit_gemm_plan")
LANES_M, LANES_N = planning.LANES_M, planning.LANES_N


def shared_among_lanes(of, THREAD_M, THREAD_N):
    """Device functions for the Layout `of` a tile: `first_of_thread`, `filter_of`, `copied_row`, `multiply_part`."""
    WARP_M, WARP_N, WARPS_N, _, _, COLUMNS, _, GROUP, TOGETHER, APART, STRIDE, A_SIZE, _ = of

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

    return first_of_thread, filter_of, copied_row, multiply_part
