"""hgemm_pipelined: tiles travel several stages ahead, and fragments one step ahead, so that nobody waits.

Previous step: hgemm_swizzled
New idea: `cp.async` copies in groups. While one pair of tiles is multiplied, the next STAGES - 1 are on their way;
    `wait_group` waits for the oldest group alone. So many tiles need more than 48 KiB of shared memory, which a
    launch must ask for. And as in gemm_tuned, fragments of the next k are read before this one's are multiplied.
Loads per FMA: a warp reads (WARP_M + WARP_N) / (WARP_M * WARP_N) = 0.03 shared values; warps wait less.
Run: python -m lessons.06_tensor_cores hgemm_pipelined
"""

import importlib
from functools import lru_cache

from numba import cuda, float32, int64, uint32
from numba.types import float16

from lessons.toolkit import card, memory
from lessons.toolkit.grid import jit
from lessons.toolkit.memory import HALVES, aligned, commit_group, half_array, wait_group
from lessons.toolkit.mma import ldmatrix4_at, ldmatrix4_transposed_at, mma_m16n8k16, shared_address
from lessons.toolkit.narrow import narrow
from lessons.toolkit.pasted import pasted, walk
from lessons.toolkit.unroll import inlined, unroll, unrolled

place = importlib.import_module("lessons.06_tensor_cores.hgemm_swizzled").place

REQUIRES = "8.0"
BLOCK_K = 64
TILES = (128, 256, 3), (128, 128, 3)  # 144 KiB of shared memory; 96, where a block has no more than 99
# STAGES: pairs of tiles in shared memory
BLOCK_M, BLOCK_N, STAGES = card.largest(TILES, lambda tile: 2 * tile[2] * (tile[0] + tile[1]) * BLOCK_K)
WARP_M, WARP_N = 64, 64
GROUP_M = 16  # rows of blocks that run together and share columns of B in L2
BLOCKS_PER_SM = 1  # leaves each thread at most 65536 / THREADS / BLOCKS_PER_SM registers
TUNABLES = {
    "BLOCK_M": (128, 256), "BLOCK_N": (128, 256), "STAGES": (2, 3, 4), "GROUP_M": (1, 2, 4, 8, 16),
    "BLOCKS_PER_SM": (1, 2),
}  # fmt: skip

MMA_M, MMA_N, MMA_K = 16, 8, 16  # the tile that one instruction multiplies
if BLOCK_M % WARP_M or BLOCK_N % WARP_N or WARP_M % MMA_M or WARP_N % (2 * MMA_N) or BLOCK_K % 64:
    raise ValueError(f"{BLOCK_M=} {BLOCK_N=} must be multiples of {WARP_M=} {WARP_N=}, these of 16, {BLOCK_K=} of 64")
WARPS_N = BLOCK_N // WARP_N
THREADS = BLOCK_M // WARP_M * WARPS_N * 32
PIECES = 8  # of 16 bytes in a row: what threads beside each other copy
COPY_ROWS, COPY_COLUMNS = THREADS // PIECES, PIECES * HALVES  # of a tile, with one copy of each thread
if THREADS > 1024 or BLOCK_M % COPY_ROWS or BLOCK_K % COPY_ROWS or BLOCK_K % COPY_COLUMNS or BLOCK_N % COPY_COLUMNS:
    raise ValueError(f"{BLOCK_M=} {BLOCK_N=} {BLOCK_K=} do not divide among {THREADS=}")
A_SIZE, STAGE = BLOCK_M * BLOCK_K, (BLOCK_M + BLOCK_N) * BLOCK_K  # values of a tile of A, of a pair
STRIDE = WARP_N + HALVES  # of the results on their way through shared memory: padded against bank conflicts
if STAGES < 2 or BLOCK_M * BLOCK_N // WARP_N * STRIDE > STAGES * STAGE:
    raise ValueError(f"{STAGES=} must be 2 or more, and hold the results of {BLOCK_M=} {BLOCK_N=}")
LAST, AHEAD = (STAGES - 1) * STAGE, (STAGES - 1) * BLOCK_K
PENDING = STAGES - 2  # groups that may still travel when the next pair is needed
BYTES = 2  # of a value
SHARED_BYTES = BYTES * STAGES * STAGE
ROWS, COLUMNS = WARP_M // MMA_M, WARP_N // MMA_N  # instructions that tile a warp's tile
K_STEPS, PAIRS, ACC_ROW = BLOCK_K // MMA_K, COLUMNS // 2, COLUMNS * 4
STORED_ROWS = 32 * HALVES // WARP_N  # of a warp's tile, with one store
A_FRAG, B_FRAG, ACC = 2 * ROWS * 8, 2 * COLUMNS * 4, ROWS * ACC_ROW  # fragments of this k and the next; sums


@inlined
@narrow
def load_fragments(half, tiles, start, k, a_at, b_at, a_frag, b_frag):
    """Sixteen k of the tiles to a half of the fragments; the lane names rows at a_at and b_at, in bytes."""
    for i in range(ROWS):
        ldmatrix4_at(a_frag, (half * ROWS + i) * 8, tiles, start + a_at[k] + i * MMA_M * BLOCK_K * BYTES)
    for j in range(0, COLUMNS, 2):
        at = start + b_at[j // 2] + k * MMA_K * BLOCK_N * BYTES
        ldmatrix4_transposed_at(b_frag, (half * COLUMNS + j) * 4, tiles, at)


def multiplying(mma, A_PART, B_PART):
    """Build the device function that multiplies half of the fragments, of so many values for each instruction."""

    @inlined
    def multiply(half, a_frag, b_frag, acc):
        """i runs to and fro: where j moves on, a fragment of A is still at the multiplier."""
        for j in range(COLUMNS):
            for turn in range(ROWS):
                i = turn if j % 2 == 0 else ROWS - 1 - turn
                a, b = (half * ROWS + i) * A_PART, (half * COLUMNS + j) * B_PART
                mma(acc, i * ACC_ROW + j * 4, a_frag, a, b_frag, b)

    return multiply


multiply = multiplying(mma_m16n8k16, 8, 4)


@inlined
@narrow
def leave_row(tiles, at, acc, first):
    """A row of a warp's instructions, 16 rows of results, from acc[first] to tiles[at]."""
    lane = cuda.threadIdx.x % 32
    at += lane // 4 * STRIDE + lane % 4 * 2
    for j in range(COLUMNS):
        memory.store2_rounded(tiles, at + j * MMA_N, acc, first + j * 4)
        memory.store2_rounded(tiles, at + 8 * STRIDE + j * MMA_N, acc, first + j * 4 + 2)


@pasted
@narrow
def store_rows(c, tiles, own, lane, m0, n0, warp_m, warp_n, wide, full):
    """What a warp left from tiles[own] on, to its tile of the block's, in whole rows; full: all of it lies in C."""
    N = c.shape[1]
    for i in range(0, WARP_M, STORED_ROWS):
        row, column = i + lane // (WARP_N // HALVES), lane % (WARP_N // HALVES) * HALVES
        m, n = m0 + warp_m + row, n0 + warp_n + column
        if full:
            memory.store8(c, m * N + n, tiles, own + row * STRIDE + column)
        else:
            memory.store8_guarded(c, m, n, tiles, own + row * STRIDE + column, wide)


@pasted
@narrow
@unroll
def store_tile(c, tiles, warp, lane, acc, m0, n0, warp_m, warp_n, wide, full):
    """The sums to the warp's tile, (warp_m, warp_n) within the block's, through shared memory."""
    own = warp * WARP_M * STRIDE
    for i in unrolled(ROWS):
        leave_row(tiles, own + i * MMA_M * STRIDE, acc, i * ACC_ROW)
    cuda.syncwarp()
    store_rows(c, tiles, own, lane, m0, n0, warp_m, warp_n, wide, full)


@lru_cache
def specialise(full):
    """Build the kernel; `full` promises whole tiles and aligned rows, so that it needs no guards."""

    @inlined
    @narrow
    def copy_tiles(tiles, start, a, b, m0, n0, a_from, b_from, k0, wide):
        """Start the pair of tiles from k0 on, to tiles[start]; what lies outside A or B counts as zero."""
        K, N = b.shape
        row, column = cuda.threadIdx.x // PIECES, cuda.threadIdx.x % PIECES * HALVES
        # 8 rows or 64 columns further the XOR is the same; a constant added last becomes part of the instruction
        first = start + place(row, column, BLOCK_K)
        for i in range(0, BLOCK_M, COPY_ROWS):
            for j in range(0, BLOCK_K, COPY_COLUMNS):
                at = first + (i * BLOCK_K + j)
                if full:
                    memory.copy8_async(tiles, at, a, a_from + k0 + i * K + j)
                else:
                    memory.copy8_guarded(tiles, at, a, m0 + i + row, k0 + column + j, wide)
        first = start + place(row, column, BLOCK_N)
        for i in range(0, BLOCK_K, COPY_ROWS):
            for j in range(0, BLOCK_N, COPY_COLUMNS):
                at = first + (A_SIZE + i * BLOCK_N + j)
                if full:
                    memory.copy8_async(tiles, at, b, b_from + (k0 + i) * N + j)
                else:
                    memory.copy8_guarded(tiles, at, b, k0 + i + row, n0 + column + j, wide)

    @jit(THREADS, BLOCKS_PER_SM)
    @narrow
    @unroll
    def hgemm_pipelined(a, b, c, wide):
        tiles = half_array(0)  # dynamic shared memory: a launch may ask for more than 48 KiB of it
        a_frag, b_frag = cuda.local.array(A_FRAG, float16), cuda.local.array(B_FRAG, float16)
        acc = cuda.local.array(ACC, float32)
        a_at, b_at = cuda.local.array(K_STEPS, uint32), cuda.local.array(PAIRS, uint32)
        M, N = c.shape
        K = a.shape[1]

        # locate: the block; blocks walk down GROUP_M rows before they move one column to the right
        blocks_m, blocks_n = (M + BLOCK_M - 1) // BLOCK_M, (N + BLOCK_N - 1) // BLOCK_N
        m0, n0 = walk(cuda.blockIdx.x, blocks_m, blocks_n, GROUP_M, BLOCK_M, BLOCK_N)

        # locate: the warp, and what the thread copies, as flat offsets for k0 = 0
        thread = cuda.threadIdx.x
        warp, lane = thread // 32, thread % 32
        warp_m, warp_n = warp // WARPS_N * WARP_M, warp % WARPS_N * WARP_N
        a_from = (m0 + thread // PIECES) * K + thread % PIECES * HALVES
        b_from = thread // PIECES * N + n0 + thread % PIECES * HALVES

        # stage: the first STAGES - 1 pairs of tiles, a group each
        for stage in range(STAGES - 1):
            copy_tiles(tiles, stage * STAGE, a, b, m0, n0, a_from, b_from, stage * BLOCK_K, wide)
            commit_group()

        # locate: what the lane names to ldmatrix: lanes 0-15 rows, lanes 16-31 the same eight columns further
        row, column = lane % 16, lane // 16 * HALVES
        for k in unrolled(K_STEPS):
            a_at[k] = shared_address(tiles, place(warp_m + row, k * MMA_K + column, BLOCK_K))
        for j in unrolled(PAIRS):
            b_at[j] = shared_address(tiles, A_SIZE + place(row, warp_n + j * 2 * MMA_N + column, BLOCK_N))

        for i in unrolled(ROWS):
            for j in range(ACC_ROW):
                acc[i * ACC_ROW + j] = float32(0.0)

        # stage: the first pair has arrived
        wait_group(PENDING)
        cuda.syncthreads()

        # multiply: the fragments of the first k; those of each next k are read before one is multiplied
        read, write = 0, LAST
        load_fragments(0, tiles, read, 0, a_at, b_at, a_frag, b_frag)
        for k0 in range(int64(0), K, BLOCK_K):  # K may need 64 bits
            for k in unrolled(K_STEPS):
                # stage: the next pair has arrived, and of this one all threads have the last k in registers
                if k == K_STEPS - 1:
                    commit_group()  # in the last rounds an empty one: so PENDING counts right
                    wait_group(PENDING)
                    cuda.syncthreads()
                    write = read
                    read = read + STAGE if read < LAST else 0

                # stage: the next k's fragments; once, the last pair so far, behind them: copies would put them off
                load_fragments((k + 1) % 2, tiles, BYTES * read, (k + 1) % K_STEPS, a_at, b_at, a_frag, b_frag)
                if k == 0 and k0 + AHEAD < K:
                    copy_tiles(tiles, write, a, b, m0, n0, a_from, b_from, k0 + AHEAD, wide)

                # multiply
                multiply(k % 2, a_frag, b_frag, acc)

        # store
        wait_group(0)
        cuda.syncthreads()
        store_tile(c, tiles, warp, lane, acc, m0, n0, warp_m, warp_n, wide, full)

    return hgemm_pipelined


def launch(a, b, c):
    M, N = c.shape
    wide = aligned(a, b, c)
    K = a.shape[1]
    full = wide and M % BLOCK_M == 0 and N % BLOCK_N == 0 and K % BLOCK_K == 0 and K >= AHEAD
    blocks = -(-M // BLOCK_M) * -(-N // BLOCK_N)
    specialise(full)[blocks, THREADS, 0, SHARED_BYTES](a, b, c, wide)
