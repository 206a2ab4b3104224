"""hconv3d_mma: lesson 05's implicit GEMM, multiplied as in hgemm_pipelined.

Previous step: none
Builds on: hgemm_pipelined
New idea: the matrix unit does not mind where a tile came from. Rows of A are windows, found by lesson 05's table and
    masks; 16 bytes are eight channels of a tap. Rows of B are filters, along gemm_k: `ldmatrix` need not transpose.
Loads per FMA: as in hgemm_pipelined; a copy costs an addition and an AND more.
Run: python -m lessons.06_tensor_cores hconv3d_mma
"""

import importlib
from functools import lru_cache

from numba import cuda, float32, int32, int64, uint32
from numba.types import float16

from lessons.toolkit.grid import jit
from lessons.toolkit.memory import HALVES, aligned, commit_group, copy8_or_zero, half_array, wait_group
from lessons.toolkit.narrow import narrow
from lessons.toolkit.pasted import pasted, walk
from lessons.toolkit.tiles import keep, mask_words, require_offsets, windows
from lessons.toolkit.unroll import inlined, unroll, unrolled

pipelined = importlib.import_module("lessons.06_tensor_cores.hgemm_pipelined")
fragments = importlib.import_module("lessons.06_tensor_cores.helpers.hconv3d_fragments")
planning = importlib.import_module("lessons.06_tensor_cores.helpers.hconv3d_plan")
place, multiply, load_fragments = pipelined.place, pipelined.multiply, fragments.load_fragments

REQUIRES = "8.0"
BLOCK_K, WARP_M, WARP_N = pipelined.BLOCK_K, pipelined.WARP_M, pipelined.WARP_N
GROUP_M = 8  # rows of blocks that run together and share filters in L2
TUNABLES = {"GROUP_M": (1, 4, 8, 16)}
ROWS, ACC_ROW, K_STEPS = pipelined.ROWS, pipelined.ACC_ROW, pipelined.K_STEPS
A_FRAG, B_FRAG, ACC = pipelined.A_FRAG, pipelined.B_FRAG, pipelined.ACC
PIECES, prepare = planning.PIECES, planning.prepare


@lru_cache
def specialise(WORDS, wide, BLOCK_M, BLOCK_N, STAGES, BLOCKS_PER_SM, finish=keep):
    """Build the kernel, masks of WORDS words; `wide` promises channels in eights, on 16-byte boundaries."""
    WARPS_N, THREADS, COPIED, STAGE = planning.layout(BLOCK_M, BLOCK_N, STAGES)  # COPIED rows are copied at a time
    LAST, AHEAD = (STAGES - 1) * STAGE, (STAGES - 1) * BLOCK_K
    PENDING = STAGES - 2  # groups that may still travel when the next pair is needed
    MASKS, ENTRY = BLOCK_M * WORDS, 1 + WORDS  # words; an entry of the table: an offset and the bits it needs
    begin_window, name_rows = windows(WORDS), fragments.reading(BLOCK_M)

    @inlined
    @narrow
    def copy_tiles(tiles, start, source, filt_from, gemm_k):
        """Start a pair of tiles, to tiles[start]: of each row the thread's piece, zeros where it lies outside."""
        x, filt, _, starts, masks, entry, filters_left, _, _, GEMM_K = source
        row, column = cuda.threadIdx.x // PIECES, cuda.threadIdx.x % PIECES * HALVES
        at = start + place(row, column, BLOCK_K)
        for i in range(0, BLOCK_M, COPIED):  # a start before x has wrapped: the 32-bit sum wraps back, then widens
            outside = 0
            for word in range(WORDS):
                outside |= masks[(row + i) * WORDS + word] & entry[1 + word]
            copy8_or_zero(tiles, at + i * BLOCK_K, x, int64(starts[row + i] + entry[0]), outside == 0)
        for i in range(0, BLOCK_N, COPIED):
            inside = gemm_k < GEMM_K and int32(i) < filters_left
            copy8_or_zero(tiles, at + (BLOCK_M + i) * BLOCK_K, filt, filt_from + i * int64(GEMM_K), inside)

    copy_one_by_one = fragments.copying(WORDS, BLOCK_M, BLOCK_N, THREADS)

    @pasted
    def read_entry(entry, table, gemm_k):
        for word in range(ENTRY):
            entry[word] = table[gemm_k * ENTRY + word]

    @jit(THREADS, BLOCKS_PER_SM)
    @narrow
    @unroll
    def hconv3d_mma(x, filt, table, y, extents, filters, outputs, geometry, wide_y, operands):
        tiles = half_array(0)
        starts, masks = cuda.shared.array(BLOCK_M, uint32), cuda.shared.array(MASKS, uint32)
        entry = cuda.local.array(ENTRY, uint32)
        a_frag, b_frag = cuda.local.array(A_FRAG, float16), cuda.local.array(B_FRAG, float16)
        acc = cuda.local.array(ACC, float32)
        a_at, b_at = cuda.local.array(K_STEPS, uint32), cuda.local.array(K_STEPS, uint32)
        T, R, S = filters
        GEMM_M, GEMM_N = y.shape
        GEMM_K = uint32(T * R * S * extents[3])

        # locate: the block; blocks walk down GROUP_M rows before they move one column to the right
        blocks_m, blocks_n = (GEMM_M + BLOCK_M - 1) // BLOCK_M, (GEMM_N + BLOCK_N - 1) // BLOCK_N
        m0, n0 = walk(cuda.blockIdx.x, blocks_m, blocks_n, GROUP_M, BLOCK_M, BLOCK_N)

        # locate: the warp, and the thread's piece: eight gemm_k, of every COPIED-th row
        thread = cuda.threadIdx.x
        warp, lane = thread // 32, thread % 32
        warp_m, warp_n = warp // WARPS_N * WARP_M, warp % WARPS_N * WARP_N
        gemm_k = thread % PIECES * HALVES
        filter_row = n0 + thread // PIECES
        filters_left = int32(GEMM_N - filter_row)  # from the thread's first one on; below 1: none
        filt_from = filter_row * int64(GEMM_K) + gemm_k

        # locate: where windows begin in x, which of their taps fall outside, the rows that the lane names to ldmatrix
        for row in range(thread, BLOCK_M, THREADS):
            begin_window(starts, masks, row, uint32(m0 + row), GEMM_M, extents, filters, outputs, geometry)
        cuda.syncthreads()
        name_rows(a_at, b_at, lane, warp_m, warp_n)
        for i in range(ACC):
            acc[i] = float32(0.0)

        # stage: the first STAGES - 1 pairs of tiles, a group each
        source = x, filt, table, starts, masks, entry, filters_left, n0, GEMM_N, GEMM_K
        for stage in range(STAGES - 1):
            if wide:
                read_entry(entry, table, gemm_k)
                copy_tiles(tiles, stage * STAGE, source, filt_from, gemm_k)
            else:
                copy_one_by_one(tiles, stage * STAGE, source, stage * BLOCK_K)
            commit_group()
            gemm_k += BLOCK_K
            filt_from += BLOCK_K
        read_entry(entry, table, gemm_k)
        wait_group(PENDING)
        cuda.syncthreads()

        # multiply: the fragments of the first k; those of each next k are read before one is multiplied
        read, write = 0, LAST
        load_fragments(0, tiles, read, 0, a_at, b_at, a_frag, b_frag)
        for k0 in range(0, GEMM_K, BLOCK_K):
            # stage: the pair AHEAD of this one. Each branch commits a group, an empty one at the end, so that PENDING
            # counts right. With one commit behind the branches the compiler would mix copies with products
            if wide and k0 + AHEAD < GEMM_K:
                copy_tiles(tiles, write, source, filt_from, gemm_k)
                commit_group()
            elif k0 + AHEAD < GEMM_K:
                copy_one_by_one(tiles, write, source, k0 + AHEAD)
                commit_group()
            else:
                commit_group()
            write = read
            gemm_k += BLOCK_K
            filt_from += BLOCK_K
            read_entry(entry, table, gemm_k)  # for the pair that is copied next round: reading takes its time

            for k in unrolled(K_STEPS):
                # stage: the next pair has arrived, and of this one all threads have the last k in registers
                if k == K_STEPS - 1:
                    wait_group(PENDING)
                    cuda.syncthreads()
                    read = read + STAGE if read < LAST else 0

                # multiply
                load_fragments((k + 1) % 2, tiles, read, (k + 1) % K_STEPS, a_at, b_at, a_frag, b_frag)
                multiply(k % 2, a_frag, b_frag, acc)

        # store
        wait_group(0)
        cuda.syncthreads()
        left, top = lane % 4 * 2, lane // 4
        finish(acc, m0 + warp_m + top, n0 + warp_n + left, GEMM_M, GEMM_N, operands)
        pipelined.store_tile(y, tiles, warp, lane, acc, m0, n0, warp_m, warp_n, wide_y, False)

    return hconv3d_mma, THREADS, 2 * STAGES * STAGE


def launch(x, prepared, y, geometry, finish=None):
    """y = the convolution; a `finish` works on sums before they are rounded: see lesson 05's `multiply`."""
    filt, table = prepared
    N, D, H, W, C = x.shape
    O, P, Q, K = y.shape[1:]
    T, R, S = filt.shape[1:4]
    words = mask_words(T, R, S)
    GEMM_M, tile = N * O * P * Q, planning.plan(K, words)
    require_offsets("x, filt or a column of y", x.size, filt.size, GEMM_M + tile["BLOCK_M"])
    rows = y.reshape(GEMM_M, K)
    wide = aligned(x.reshape(x.size // C, C), filt.reshape(filt.size // C, C))
    hooks = {} if finish is None else finish.hooks(y, **planning.sums_of_a_thread(**tile))
    operands = () if finish is None else finish.operands
    kernel, threads, shared_bytes = specialise(words, wide, **tile, **hooks)
    blocks = -(-GEMM_M // tile["BLOCK_M"]) * -(-K // tile["BLOCK_N"])
    flat = x.reshape(x.size), filt.reshape(filt.size)
    kernel[blocks, threads, 0, shared_bytes](
        *flat, table, rows, (D, H, W, C), (T, R, S), (O, P, Q), geometry, aligned(rows), operands
    )
    if finish is not None:
        finish.complete(None, y)
