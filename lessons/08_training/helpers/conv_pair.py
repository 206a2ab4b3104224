"""Two convolutions in one kernel, the second of 1 x 1: what lies between them stays in the block's shared memory.

The first half is `hconv3d_mma`, all but its last line, which stores the tile. Instead the tile is rounded to float16
and is the left operand of a second product, a block of the second filter's rows after the other.
Source: CUTLASS, examples/13_two_tensor_op_fusion, in its form that stages the tile in shared memory.
"""

from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, uint32
from numba.types import float16

from lessons.toolkit import memory
from lessons.toolkit.grid import jit
from lessons.toolkit.memory import HALVES, aligned, commit_group, wait_group
from lessons.toolkit.mma import positive
from lessons.toolkit.narrow import narrow
from lessons.toolkit.pasted import pasted
from lessons.toolkit.tiles import ceil_div, mask_words, require_offsets
from lessons.toolkit.unroll import compiled, definition_of, inlined, unroll, unrolled

epilogues = import_module("lessons.08_training.helpers.epilogues")
fragments = import_module("lessons.06_tensor_cores.helpers.hconv3d_fragments")
pipelined = import_module("lessons.06_tensor_cores.hgemm_pipelined")
planning = import_module("lessons.06_tensor_cores.helpers.hconv3d_plan")
step = import_module("lessons.06_tensor_cores.hconv3d_mma")

BLOCK_K, MMA_M, MMA_N, ROWS, COLUMNS = step.BLOCK_K, pipelined.MMA_M, pipelined.MMA_N, step.ROWS, pipelined.COLUMNS
ACC, ACC_ROW, K_STEPS, A_FRAG, B_FRAG = step.ACC, step.ACC_ROW, step.K_STEPS, step.A_FRAG, step.B_FRAG
STRIDE, STORED_ROWS, PIECES = pipelined.STRIDE, pipelined.STORED_ROWS, step.PIECES
PIECES_STORED = step.WARP_N // HALVES  # of 16 bytes, in a row of a warp's results
place, leave_row, load_fragments, multiply = step.place, pipelined.leave_row, step.load_fragments, step.multiply


@epilogues.epilogue()
def relu(value, m, n):
    return positive(value)


class Pair(NamedTuple):
    """In the place of `hconv3d_mma`'s y: its shape, the second filter [K2, K], its rows maybe `wide`, y [M, K2]."""

    shape: tuple
    second: Any
    y: Any
    wide: bool


def room(BLOCK_M, BLOCK_N, STAGES):
    """Behind the tile between, where results leave, and blocks of the second filter lie; how many; values in all."""
    _, threads, _, stage = planning.layout(BLOCK_M, BLOCK_N, STAGES)
    leaving = BLOCK_M * BLOCK_N
    ring = leaving + threads // 32 * MMA_M * STRIDE
    slots = max(2, (STAGES * stage - ring) // (BLOCK_N * BLOCK_K))
    return leaving, ring, slots, max(STAGES * stage, ring + slots * BLOCK_N * BLOCK_K)


def second_half(K, BLOCK_M, BLOCK_N, STAGES):
    """Build what follows the last product of a first convolution with K filters, in the place of `store_tile`."""
    _, _, COPIED, _ = planning.layout(BLOCK_M, BLOCK_N, STAGES)
    LEAVING, RING, SLOTS, _ = room(BLOCK_M, BLOCK_N, STAGES)
    PANELS = ceil_div(K, BLOCK_K)  # the tile between lies as panels of BLOCK_K columns, each as a tile of A
    PANEL, SLOT, LAST = BLOCK_M * BLOCK_K, BLOCK_N * BLOCK_K, RING + (SLOTS - 1) * BLOCK_N * BLOCK_K
    PENDING = SLOTS - 2  # groups that may still travel when the next block is needed
    name_rows = fragments.reading(0)

    @inlined
    @narrow
    def copy_block(tiles, start, second, number, wide):
        """Start a block of the second filter, BLOCK_N rows of BLOCK_K, to tiles[start]; numbers run along rows."""
        row, column = cuda.threadIdx.x // PIECES, cuda.threadIdx.x % PIECES * HALVES
        n, k = number // PANELS * BLOCK_N + row, number % PANELS * BLOCK_K + column
        at = start + place(row, column, uint32(BLOCK_K))
        for i in range(0, BLOCK_N, COPIED):
            memory.copy8_guarded(tiles, at + i * BLOCK_K, second, n + i, k, wide)

    @inlined
    @narrow
    def round_row(tiles, row, n, acc, first):
        """Sixteen rows of a warp's sums from acc[first] to the tile between, from (row, n) on; zeros beyond K."""
        lane = cuda.threadIdx.x % 32
        top, left = row + lane // 4, lane % 4 * 2
        panel = n // BLOCK_K * PANEL
        for j in range(COLUMNS):
            column = left + j * MMA_N
            if K % BLOCK_N != 0:
                for v in range(4):
                    if n + column + v % 2 >= K:
                        acc[first + j * 4 + v] = float32(0.0)
            for below in range(2):
                at = panel + place(top + 8 * below, column, uint32(BLOCK_K))
                memory.store2_rounded(tiles, at, acc, first + j * 4 + 2 * below)

    @inlined
    @narrow
    def store_rows(y, tiles, at, m, n, wide):
        """Sixteen rows of a warp's results from tiles[at] to y[m, n]."""
        lane = cuda.threadIdx.x % 32
        row, column = lane // PIECES_STORED, lane % PIECES_STORED * HALVES
        M, N = y.shape
        m, n, at = m + row, n + column, at + row * STRIDE + column
        if wide and m + MMA_M - STORED_ROWS < M and n < N:  # nothing is asked between the reads and the stores
            for i in range(0, MMA_M, STORED_ROWS):
                memory.store8(y, (m + i) * N + n, tiles, at + i * STRIDE)
        else:
            for i in range(0, MMA_M, STORED_ROWS):
                memory.store8_guarded(y, m + i, n, tiles, at + i * STRIDE, wide)

    @pasted
    @narrow
    @unroll
    def multiply_again(pair, tiles, warp, lane, acc, m0, n0, warp_m, warp_n, wide, full):
        a_frag, b_frag = cuda.local.array(A_FRAG, float16), cuda.local.array(B_FRAG, float16)
        a_at, b_at = cuda.local.array(K_STEPS, uint32), cuda.local.array(K_STEPS, uint32)
        b_from = cuda.local.array(K_STEPS, uint32)

        # stage: the first blocks of the second filter, a group each
        for number in range(SLOTS - 1):
            copy_block(tiles, RING + number * SLOT, pair.second, number, pair.wide)
            commit_group()

        # stage: the tile between
        for i in unrolled(ROWS):
            round_row(tiles, warp_m + i * MMA_M, warp_n, acc, i * ACC_ROW)
        name_rows(a_at, b_at, lane, warp_m, warp_n)

        number, read, write = 0, RING, LAST
        for n in range(0, pair.y.shape[1], BLOCK_N):
            for i in range(ACC):
                acc[i] = float32(0.0)
            for panel in range(PANELS):
                # stage: this block has arrived; the one that comes last so far takes the place of the one before it
                wait_group(PENDING)
                cuda.syncthreads()
                if (number + SLOTS - 1) // PANELS * BLOCK_N < pair.y.shape[1]:
                    copy_block(tiles, write, pair.second, number + SLOTS - 1, pair.wide)
                commit_group()

                # multiply
                start = panel * PANEL
                for k in unrolled(K_STEPS):
                    b_from[k] = b_at[k] + (read - start)
                load_fragments(0, tiles, start, 0, a_at, b_from, a_frag, b_frag)
                for k in unrolled(K_STEPS):
                    if k + 1 < K_STEPS:
                        load_fragments((k + 1) % 2, tiles, start, k + 1, a_at, b_from, a_frag, b_frag)
                    multiply(k % 2, a_frag, b_frag, acc)
                number += 1
                write = read
                read = read + SLOT if read < LAST else RING

            # store: sixteen rows at a time, through shared memory of the warp's own
            own = LEAVING + warp * MMA_M * STRIDE
            for i in unrolled(ROWS):
                leave_row(tiles, own, acc, i * ACC_ROW)
                cuda.syncwarp()
                store_rows(pair.y, tiles, own, m0 + warp_m + i * MMA_M, n + warp_n, wide)
                cuda.syncwarp()
        wait_group(0)

    return multiply_again


@lru_cache
def specialise(WORDS, wide, K, BLOCK_M, BLOCK_N, STAGES, BLOCKS_PER_SM, **hooks):
    """The kernel of `hconv3d_mma`, but that its `store_tile` is `multiply_again`; threads; bytes of shared memory."""
    tile = {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "STAGES": STAGES}
    kernel, threads, _ = step.specialise(WORDS, wide, BLOCKS_PER_SM=BLOCKS_PER_SM, **tile, **hooks)
    definition, names = definition_of(kernel.py_func)
    ending: Any = ModuleType("ending")
    ending.store_tile = second_half(K, **tile)
    pair = compiled(definition, {**names, "pipelined": ending}, kernel.py_func)
    return jit(threads, BLOCKS_PER_SM)(pair), threads, 2 * room(**tile)[3]


def launch(x, prepared, second, y, geometry, finish=None):
    """y [N, O, P, Q, K2] = the convolution of x by `prepared`, rounded, then that by `second` [K2, 1, 1, 1, K].

    All are float16; sums are float32. `prepared` is hconv3d_mma's, `finish` works on the first sums. ValueError if a
    tile is too narrow for K.
    """
    filt, table = prepared
    N, D, H, W, C = x.shape
    K, T, R, S = filt.shape[:4]
    O, P, Q, K2 = y.shape[1:]
    words = mask_words(T, R, S)
    GEMM_M, tile = N * O * P * Q, planning.plan(K, words)
    if tile["BLOCK_N"] < K:
        raise ValueError(f"conv_pair: filt has {K=} filters; allowed: at most {tile['BLOCK_N']}, which a tile holds")
    epilogues.require("conv_pair", "second", second, (K2, 1, 1, 1, K), [np.float16])
    require_offsets("x, filt or a column of y", x.size, filt.size, GEMM_M + tile["BLOCK_M"])
    between = np.broadcast_to(np.float16(0.0), (N, O, P, Q, K))  # what is never written: a shape and a type
    wide = aligned(x.reshape(x.size // C, C), filt.reshape(filt.size // C, C))
    hooks = {} if finish is None else finish.hooks(between, **planning.sums_of_a_thread(**tile))
    operands = () if finish is None else finish.operands
    kernel, threads, shared_bytes = specialise(words, wide, K, **tile, **hooks)
    rows, filters = y.reshape(GEMM_M, K2), second.reshape(K2, K)
    pair = Pair((GEMM_M, K), filters, rows, aligned(filters))
    kernel[-(-GEMM_M // tile["BLOCK_M"]), threads, 0, shared_bytes](
        x.reshape(x.size), filt.reshape(filt.size), table, pair, (D, H, W, C), (T, R, S), (O, P, Q), geometry,
        aligned(rows), operands,
    )  # fmt: skip
    if finish is not None:
        finish.complete(None, between)
