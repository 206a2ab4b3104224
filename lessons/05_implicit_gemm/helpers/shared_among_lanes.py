"""How threads share the tiles of conv3d_implicit_gemm: which rows each multiplies, and which it copies."""

import importlib

from lessons.toolkit.memory import VECTOR
from lessons.toolkit.pasted import pasted
from lessons.toolkit.unroll import inlined

planning = importlib.import_module("lessons.05_implicit_gemm.helpers.implicit_gemm_plan")
LANES_M, LANES_N = planning.LANES_M, planning.LANES_N


def shared_among_lanes(of):
    """Device functions for the Layout `of` a tile: `first_of_thread`, `filter_of`, `copied_row`."""
    WARP_M, WARP_N, WARPS_N, _, _, COLUMNS, _, GROUP, TOGETHER, APART, _, _, _ = of

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

    return first_of_thread, filter_of, copied_row
