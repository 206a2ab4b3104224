"""hconv3d_mma: lesson 05's implicit GEMM, multiplied as in hgemm_pipelined.

Previous step: none
New idea: the matrix unit does not mind where a tile came from. What changes is who fills it: rows of A are windows,
    found by lesson 05's table and masks, and 16 bytes are eight channels of one tap. Filters lie in KTRSC order, so
    rows of B are filters and run along gemm_k: `ldmatrix` reads them as they are, without transposing.
Loads per FMA: as in hgemm_pipelined; a copy costs an addition and an AND more.
Run: python -m lessons.06_tensor_cores hconv3d_mma
"""

import importlib
from functools import lru_cache

from numba import cuda, float32, int32, int64, uint32
from numba.types import float16

from lessons.toolkit.grid import jit
from lessons.toolkit.memory import HALVES, aligned, commit_group, copy8_or_zero, half_array, wait_group
from lessons.toolkit.mma import ldmatrix4
from lessons.toolkit.pasted import pasted, walk
from lessons.toolkit.tiles import WORD, mark_padding, mask_words, window_table
from lessons.toolkit.unroll import inlined, unroll, unrolled

pipelined = importlib.import_module("lessons.06_tensor_cores.hgemm_pipelined")
one_by_one = importlib.import_module("lessons.06_tensor_cores.helpers.one_by_one")
planning = importlib.import_module("lessons.06_tensor_cores.helpers.hconv3d_plan")
place, multiply = pipelined.place, pipelined.multiply

REQUIRES = "8.0"
BLOCK_K, WARP_M, WARP_N = pipelined.BLOCK_K, pipelined.WARP_M, pipelined.WARP_N
GROUP_M = 8  # rows of blocks that run together and share filters in L2
TUNABLES = {"GROUP_M": (1, 4, 8, 16)}

MMA_M, MMA_N, MMA_K = pipelined.MMA_M, pipelined.MMA_N, pipelined.MMA_K
ROWS, COLUMNS = pipelined.ROWS, pipelined.COLUMNS  # instructions that tile a warp's tile
K_STEPS, ACC_ROW = pipelined.K_STEPS, pipelined.ACC_ROW
A_FRAG, B_FRAG, ACC = pipelined.A_FRAG, pipelined.B_FRAG, pipelined.ACC
PIECES = BLOCK_K // HALVES  # of 16 bytes in a row of either tile
OFFSETS = 2**32  # that 32 bits can tell apart


@inlined
def keep(acc, m, n, GEMM_M, GEMM_N, operands):
    pass  # nothing follows the convolution


@lru_cache
def specialise(WORDS, wide, BLOCK_M, BLOCK_N, STAGES, BLOCKS_PER_SM, finish=keep):
    """Build the kernel, masks of WORDS words; `wide` promises pieces of eight channels on 16-byte boundaries.

    `finish` works on a thread's sums before they are rounded, and may read `operands`.
    """
    if BLOCK_M % WARP_M or BLOCK_N % WARP_N or STAGES < 2:
        raise ValueError(f"{BLOCK_M=} {BLOCK_N=} must be multiples of {WARP_M=} {WARP_N=}, {STAGES=} at least 2")
    WARPS_N = BLOCK_N // WARP_N
    THREADS = BLOCK_M // WARP_M * WARPS_N * 32
    COPIED = THREADS // PIECES  # rows that are copied at a time
    if THREADS > 1024 or BLOCK_M % COPIED or BLOCK_N % COPIED:
        raise ValueError(f"{BLOCK_M=} {BLOCK_N=} do not divide among {THREADS=}")
    STAGE = (BLOCK_M + BLOCK_N) * BLOCK_K  # values of a pair of tiles
    LAST, AHEAD = (STAGES - 1) * STAGE, (STAGES - 1) * BLOCK_K
    PENDING = STAGES - 2  # groups that may still travel when the next pair is needed
    MASKS = BLOCK_M * WORDS
    ENTRY = 1 + WORDS  # of the table: an offset and the bits it needs

    @inlined
    def load_fragments(half, tiles, start, k, a_at, b_at, a_frag, b_frag):
        """Sixteen gemm_k of the tiles to a half of the fragments; the lane names rows at a_at and b_at."""
        for i in range(ROWS):
            ldmatrix4(a_frag, (half * ROWS + i) * 8, tiles, uint32(start + a_at[k] + uint32(i * MMA_M * BLOCK_K)))
        for j in range(0, COLUMNS, 2):
            ldmatrix4(b_frag, (half * COLUMNS + j) * 4, tiles, uint32(start + b_at[k] + uint32(j * MMA_N * BLOCK_K)))

    @inlined
    def copy_tiles(tiles, start, x, filt, starts, masks, entry, filt_from, filters, gemm_k, GEMM_K):
        """Start a pair of tiles, to tiles[start]: of each row the thread's piece, zeros where it lies outside."""
        thread = uint32(cuda.threadIdx.x)
        row = thread // uint32(PIECES)
        at = start + place(row, thread % uint32(PIECES) * uint32(HALVES), uint32(BLOCK_K))
        for i in range(0, BLOCK_M, COPIED):
            outside = uint32(0)
            for word in range(WORDS):
                outside |= masks[(row + uint32(i)) * uint32(WORDS) + uint32(word)] & entry[1 + word]
            offset = uint32(starts[row + uint32(i)] + entry[0])
            copy8_or_zero(tiles, at + uint32(i * BLOCK_K), x, int64(offset), outside == 0)
        for i in range(0, BLOCK_N, COPIED):
            inside = gemm_k < GEMM_K and int32(i) < filters
            copy8_or_zero(tiles, at + uint32((BLOCK_M + i) * BLOCK_K), filt, filt_from + i * int64(GEMM_K), inside)

    copy_one_by_one = one_by_one.copying(WORDS, BLOCK_M, BLOCK_N, THREADS)

    @pasted
    def read_entry(entry, table, gemm_k):
        for word in range(ENTRY):
            entry[word] = table[gemm_k * ENTRY + word]

    @jit(THREADS, BLOCKS_PER_SM)
    @unroll
    def hconv3d_mma(x, filt, table, y, extents, filters, outputs, geometry, aligned, operands):
        tiles = half_array(0)
        starts = cuda.shared.array(BLOCK_M, uint32)
        masks = cuda.shared.array(MASKS, uint32)
        entry = cuda.local.array(ENTRY, uint32)
        a_frag = cuda.local.array(A_FRAG, float16)
        b_frag = cuda.local.array(B_FRAG, float16)
        acc = cuda.local.array(ACC, float32)
        a_at = cuda.local.array(K_STEPS, uint32)
        b_at = cuda.local.array(K_STEPS, uint32)
        D, H, W, C = extents
        T, R, S = filters
        O, P, Q = outputs
        GEMM_M, GEMM_N = y.shape
        GEMM_K = uint32(T * R * S * C)

        # locate: the block; blocks walk down GROUP_M rows before they move one column to the right
        blocks_m, blocks_n = (GEMM_M + BLOCK_M - 1) // BLOCK_M, (GEMM_N + BLOCK_N - 1) // BLOCK_N
        m0, n0 = walk(cuda.blockIdx.x, blocks_m, blocks_n, GROUP_M, BLOCK_M, BLOCK_N)

        # locate: the warp, and the thread's piece of each row
        thread = uint32(cuda.threadIdx.x)
        warp, lane = thread // uint32(32), thread % uint32(32)
        warp_m, warp_n = warp // uint32(WARPS_N) * uint32(WARP_M), warp % uint32(WARPS_N) * uint32(WARP_N)
        gemm_k = uint32(thread % uint32(PIECES) * uint32(HALVES))
        filter_row = n0 + thread // uint32(PIECES)
        filters = int32(GEMM_N - filter_row)  # that follow the thread's first one
        filt_from = filter_row * int64(GEMM_K) + int64(gemm_k)

        # locate: where each window begins in x, and which of its taps fall outside
        for row in range(thread, BLOCK_M, THREADS):
            gemm_m = uint32(m0 + row)
            n = gemm_m // uint32(O * P * Q)
            d = int32(gemm_m // uint32(P * Q) % uint32(O)) * geometry.stride_d - geometry.pad_d
            h = int32(gemm_m // uint32(Q) % uint32(P)) * geometry.stride_h - geometry.pad_h
            w = int32(gemm_m % uint32(Q)) * geometry.stride_w - geometry.pad_w
            starts[row] = uint32(int64(((n * D + d) * H + h) * W + w) * C)  # if it wraps around, the sum wraps back
            for word in range(WORDS):
                masks[row * WORDS + word] = uint32(0) if gemm_m < GEMM_M else uint32(0xFFFFFFFF)
            masks[row * WORDS + WORDS - 1] |= uint32(1) << uint32(WORD - 1)  # beyond the last gemm_k
            mark_padding(masks, row * WORDS, 0, T, d, geometry.dilation_d, D)
            mark_padding(masks, row * WORDS, T, R, h, geometry.dilation_h, H)
            mark_padding(masks, row * WORDS, T + R, S, w, geometry.dilation_w, W)
        cuda.syncthreads()

        # locate: where in a pair of tiles the rows lie that this lane names to ldmatrix. Rows of B are columns of the
        # product: eight, the same rows eight k further, the next eight
        a_row, a_column = warp_m + lane % uint32(16), lane // uint32(16) * uint32(HALVES)
        b_row = uint32(BLOCK_M) + warp_n + lane // uint32(16) * uint32(8) + lane % uint32(8)
        b_column = lane // uint32(8) % uint32(2) * uint32(HALVES)
        for k in unrolled(K_STEPS):
            a_at[k] = place(a_row, uint32(k * MMA_K) + a_column, uint32(BLOCK_K))
            b_at[k] = place(b_row, uint32(k * MMA_K) + b_column, uint32(BLOCK_K))

        for i in unrolled(ROWS):
            for j in range(ACC_ROW):
                acc[i * ACC_ROW + j] = float32(0.0)

        # stage: the first STAGES - 1 pairs of tiles, a group each
        for stage in range(STAGES - 1):
            at = uint32(stage * STAGE)
            if wide:
                read_entry(entry, table, gemm_k)
                copy_tiles(tiles, at, x, filt, starts, masks, entry, filt_from, filters, gemm_k, GEMM_K)
            else:
                copy_one_by_one(tiles, at, x, filt, starts, masks, table, n0, stage * BLOCK_K, GEMM_N, GEMM_K)
            commit_group()
            gemm_k = uint32(gemm_k + uint32(BLOCK_K))
            filt_from += BLOCK_K
        read_entry(entry, table, gemm_k)
        wait_group(PENDING)
        cuda.syncthreads()

        # multiply: the fragments of the first k; those of each next k are read before one is multiplied
        read, write = uint32(0), uint32(LAST)
        load_fragments(uint32(0), tiles, read, uint32(0), a_at, b_at, a_frag, b_frag)
        for k0 in range(0, int64(GEMM_K), BLOCK_K):
            # stage: the pair that comes last so far, into the place of the one that was multiplied before this one. A
            # group in either case: a branch of their own keeps the compiler from strewing copies among the products
            if wide and k0 + AHEAD < GEMM_K:
                copy_tiles(tiles, write, x, filt, starts, masks, entry, filt_from, filters, gemm_k, GEMM_K)
                commit_group()
            elif k0 + AHEAD < GEMM_K:
                copy_one_by_one(tiles, write, x, filt, starts, masks, table, n0, k0 + AHEAD, GEMM_N, GEMM_K)
                commit_group()
            else:
                commit_group()
            write = read
            gemm_k = uint32(gemm_k + uint32(BLOCK_K))
            filt_from += BLOCK_K
            read_entry(entry, table, gemm_k)  # of the pair after it: reading takes its time

            for k in unrolled(K_STEPS):
                # stage: the next pair has arrived, and of this one all threads have the last k in registers
                if k == K_STEPS - 1:
                    wait_group(PENDING)
                    cuda.syncthreads()
                    read = uint32(read + uint32(STAGE)) if read < uint32(LAST) else uint32(0)

                # multiply
                k_next = uint32((k + 1) % K_STEPS)
                load_fragments(uint32((k + 1) % 2), tiles, read, k_next, a_at, b_at, a_frag, b_frag)
                multiply(uint32(k % 2), a_frag, b_frag, acc)

        # store
        wait_group(0)
        cuda.syncthreads()
        left, top = lane % uint32(4) * uint32(2), lane // uint32(4)
        finish(acc, m0 + warp_m + top, n0 + warp_n + left, GEMM_M, GEMM_N, operands)
        pipelined.store_tile(y, tiles, warp, lane, acc, m0, n0, warp_m, warp_n, aligned, False)

    return hconv3d_mma, THREADS, 2 * STAGES * STAGE


def prepare(filt, problem):
    """The filter, and for each gemm_k its offset from the start of a window and the bits of its t, r and s."""
    words = mask_words(problem.T, problem.R, problem.S)
    beyond = (planning.plan(problem.K, words)["STAGES"] + 1) * BLOCK_K  # as far as entries are read
    return filt, window_table(problem, beyond)


def launch(x, prepared, y, geometry, finish=None):
    """y = the convolution; a `finish` works on sums before they are rounded: see lesson 05's `multiply`."""
    filt, table = prepared
    N, D, H, W, C = x.shape
    O, P, Q, K = y.shape[1:]
    T, R, S = filt.shape[1:4]
    words = mask_words(T, R, S)
    GEMM_M, tile = N * O * P * Q, planning.plan(K, words)
    largest = max(x.size, filt.size, GEMM_M + tile["BLOCK_M"])
    if largest >= OFFSETS:
        raise ValueError(f"x, filt or a column of y has {largest} elements: 32-bit offsets reach 2**32 of them")
    rows = y.reshape(GEMM_M, K)
    wide = aligned(x.reshape(x.size // C, C), filt.reshape(filt.size // C, C))
    hooks, operands = {}, ()
    if finish is not None:
        hooks, operands = finish.hooks(y, **planning.sums_of_a_thread(**tile)), finish.operands
    kernel, threads, shared_bytes = specialise(words, wide, **tile, **hooks)
    blocks = -(-GEMM_M // tile["BLOCK_M"]) * -(-K // tile["BLOCK_N"])
    flat = x.reshape(x.size), filt.reshape(filt.size)
    kernel[blocks, threads, 0, shared_bytes](
        *flat, table, rows, (D, H, W, C), (T, R, S), (O, P, Q), geometry, aligned(rows), operands
    )
    if finish is not None:
        finish.complete(None, y)
