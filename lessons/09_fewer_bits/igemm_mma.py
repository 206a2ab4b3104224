"""igemm_mma: values of 8 bits: twice as many in a register, in a row, in a multiplication; and the sums are exact.

Previous step: none
Builds on: hgemm_pipelined
New idea: a register holds four values in place of two, so an instruction multiplies 16 x 32 by 32 x 8. Products are
    at most 2^14: int32 holds the sum of more than 100,000 of them. A row of 128 bytes has 128 k; pieces, swizzle,
    stages and fragments lie where they lay. But of 8-bit values there is no `ldmatrix` that transposes, and the
    matrix unit wants B's four values of a register along k. So `prepare` transposes B, once.
Loads per FMA: a warp reads (WARP_M + WARP_N) / (WARP_M * WARP_N) = 0.03 shared values, of half the bytes.
Run: python -m lessons.09_fewer_bits igemm_mma
"""

import importlib
from functools import lru_cache
from typing import Any, NamedTuple

from numba import cuda, int8, int32, int64, uint32

from lessons.toolkit import card, memory
from lessons.toolkit.grid import jit
from lessons.toolkit.memory import INT8S, aligned, byte_array, commit_group, wait_group
from lessons.toolkit.mma import ldmatrix4_at, mma_m16n8k32_s8, shared_address
from lessons.toolkit.narrow import narrow
from lessons.toolkit.pasted import pasted, walk
from lessons.toolkit.unroll import inlined, unroll, unrolled

pipelined = importlib.import_module("lessons.06_tensor_cores.hgemm_pipelined")
k_major = importlib.import_module("lessons.09_fewer_bits.helpers.k_major")

REQUIRES = "8.0"
BLOCK_K = 128
TILES = (128, 256, 3), (128, 128, 3)  # 144 KiB of shared memory; 96, where a block has no more than 99
# STAGES: pairs of tiles in shared memory
BLOCK_M, BLOCK_N, STAGES = card.largest(TILES, lambda tile: tile[2] * (tile[0] + tile[1]) * BLOCK_K)
WARP_M, WARP_N = pipelined.WARP_M, pipelined.WARP_N
TUNABLES = pipelined.TUNABLES
GROUP_M = 16  # rows of blocks that run together and share columns of B in L2
BLOCKS_PER_SM = 1  # leaves each thread at most 65536 / THREADS / BLOCKS_PER_SM registers

MMA_M, MMA_N, MMA_K = 16, 8, 32  # the tile that one instruction multiplies
if BLOCK_M % WARP_M or BLOCK_N % WARP_N or WARP_M % MMA_M or WARP_N % (2 * MMA_N) or BLOCK_K != 128 or STAGES < 2:
    raise ValueError(f"{BLOCK_M=} {BLOCK_N=} must be multiples of {WARP_M=} {WARP_N=}, {BLOCK_K=} 128, {STAGES=} > 1")
WARPS_N = BLOCK_N // WARP_N
THREADS = BLOCK_M // WARP_M * WARPS_N * 32
PIECES = BLOCK_K // INT8S  # of 16 bytes in a row: what threads beside each other copy
COPY_ROWS = THREADS // PIECES  # of a tile, with one copy of each thread
if THREADS > 1024 or BLOCK_M % COPY_ROWS or BLOCK_N % COPY_ROWS:
    raise ValueError(f"{BLOCK_M=} {BLOCK_N=} do not divide among {THREADS=}")
A_SIZE, STAGE = BLOCK_M * BLOCK_K, (BLOCK_M + BLOCK_N) * BLOCK_K  # values, and bytes, of a tile of A, of a pair
LAST, AHEAD = (STAGES - 1) * STAGE, (STAGES - 1) * BLOCK_K
PENDING = STAGES - 2  # groups that may still travel when the next pair is needed
SHARED_BYTES = STAGES * STAGE
ROWS, COLUMNS, ACC_ROW = pipelined.ROWS, pipelined.COLUMNS, pipelined.ACC_ROW
K_STEPS, multiplying = BLOCK_K // MMA_K, pipelined.multiplying
A_FRAG, B_FRAG, ACC = 2 * ROWS * 16, 2 * COLUMNS * 8, ROWS * ACC_ROW  # fragments of this k and the next; sums


@inlined
@narrow
def place(row, column):
    """Where in a tile an element lies: pieces of sixteen change places within a row."""
    return row * BLOCK_K + (column ^ row % PIECES * INT8S)


@inlined
@narrow
def load_fragments(half, tiles, start, k, a_at, b_at, a_frag, b_frag):
    """32 k of the tiles to a half of the fragments; the lane names rows at a_at and b_at."""
    for i in range(ROWS):
        ldmatrix4_at(a_frag, (half * ROWS + i) * 16, tiles, start + a_at[k] + i * MMA_M * BLOCK_K)
    for j in range(0, COLUMNS, 2):
        ldmatrix4_at(b_frag, (half * COLUMNS + j) * 8, tiles, start + b_at[k] + j * MMA_N * BLOCK_K)


@inlined
def store_pair(c, m, n, acc, i, paired, operands):
    """c[m, n:n+2] = acc[i:i+2], nothing outside; one by one unless rows are even (`paired`)."""
    M, N = c.shape
    if m < M:
        if paired and n < N:
            memory.store2(c, m * N + n, acc, i)
        else:
            for v in range(2):
                if n + v < N:
                    c[m, n + v] = acc[i + v]


class Kind(NamedTuple):
    """Of values whose bytes it moves: the type of a sum, what multiplies fragments, how a pair of sums is stored."""

    sum: Any
    multiply: Any
    store: Any


S8 = Kind(int32, multiplying(mma_m16n8k32_s8, 16, 8), store_pair)


@lru_cache
def specialise(full, kind):
    """Build the kernel for values of this kind; `full` promises whole tiles and aligned rows: no copy is guarded."""
    value, multiply, store = kind

    @pasted
    @narrow
    @unroll
    def store_tile(c, acc, m, n, lane, paired, operands):
        """The sums to the warp's tile, from (m, n) on: four lanes write 32 bytes of a row, all of a sector."""
        m, n = m + lane // 4, n + lane % 4 * 2
        for i in unrolled(ROWS):
            for j in unrolled(COLUMNS):
                first = i * ACC_ROW + j * 4
                store(c, m + i * MMA_M, n + j * MMA_N, acc, first, paired, operands)
                store(c, m + i * MMA_M + 8, n + j * MMA_N, acc, first + 2, paired, operands)

    @inlined
    @narrow
    def copy_tile(tiles, start, rows, array, row0, source, k0, wide):
        """Start a tile of `rows` rows from k0 on, to tiles[start]; what lies outside the array counts as zero."""
        K = array.shape[1]
        thread = cuda.threadIdx.x
        row, column = thread // PIECES, thread % PIECES * INT8S
        # 8 rows further the XOR is the same: all places are constants away from the first
        first = start + place(row, column)
        for i in range(0, rows, COPY_ROWS):
            at = first + i * BLOCK_K
            if full:
                memory.copy16_async(tiles, at, array, source + k0 + i * K)
            else:
                memory.copy16_guarded(tiles, at, array, row0 + i + row, k0 + column, wide)

    @jit(THREADS, BLOCKS_PER_SM)
    @narrow
    @unroll
    def igemm_mma(a, b_t, c, K, aligned, operands):
        tiles = byte_array(0)  # dynamic shared memory: a launch may ask for more than 48 KiB of it
        a_frag, b_frag = cuda.local.array(A_FRAG, int8), cuda.local.array(B_FRAG, int8)
        acc = cuda.local.array(ACC, value)
        a_at, b_at = cuda.local.array(K_STEPS, uint32), cuda.local.array(K_STEPS, uint32)
        (M, N), (wide, paired) = c.shape, aligned

        # locate: the block; blocks walk down GROUP_M rows before they move one column to the right
        blocks_m, blocks_n = (M + BLOCK_M - 1) // BLOCK_M, (N + BLOCK_N - 1) // BLOCK_N
        m0, n0 = walk(cuda.blockIdx.x, blocks_m, blocks_n, GROUP_M, BLOCK_M, BLOCK_N)

        # locate: the warp, and what the thread copies, as flat offsets for k0 = 0
        thread = cuda.threadIdx.x
        warp, lane = thread // 32, thread % 32
        warp_m, warp_n = warp // WARPS_N * WARP_M, warp % WARPS_N * WARP_N
        a_from = (m0 + thread // PIECES) * a.shape[1] + thread % PIECES * INT8S
        b_from = (n0 + thread // PIECES) * b_t.shape[1] + thread % PIECES * INT8S

        # stage: the first STAGES - 1 pairs of tiles, a group each
        for stage in range(STAGES - 1):
            copy_tile(tiles, stage * STAGE, BLOCK_M, a, m0, a_from, stage * BLOCK_K, wide)
            copy_tile(tiles, stage * STAGE + A_SIZE, BLOCK_N, b_t, n0, b_from, stage * BLOCK_K, True)
            commit_group()

        # locate: the rows that the lane names to ldmatrix. Of A lanes 0-15 name rows, lanes 16-31 the same 16 columns
        # further; of B every eight lanes change the columns, every sixteen rows
        row, right = lane % 16, lane // 16 * INT8S
        n_row, n_right = lane // 16 * 8 + lane % 8, lane // 8 % 2
        for k in unrolled(K_STEPS):
            a_at[k] = shared_address(tiles, place(warp_m + row, k * MMA_K + right))
            at = place(warp_n + n_row, k * MMA_K + n_right * INT8S)
            b_at[k] = shared_address(tiles, A_SIZE + at)

        for i in unrolled(ROWS):
            for j in range(ACC_ROW):
                acc[i * ACC_ROW + j] = value(0)

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
                    # behind the last pair there is none: its fragments are read again, for nobody
                    if k0 + BLOCK_K < K:
                        read = read + STAGE if read < LAST else 0

                # stage: the next k's fragments; once, the last pair so far, behind them: copies would put them off
                k_next = (k + 1) % K_STEPS
                load_fragments((k + 1) % 2, tiles, read, k_next, a_at, b_at, a_frag, b_frag)
                if k == 0 and k0 + AHEAD < K:
                    copy_tile(tiles, write, BLOCK_M, a, m0, a_from, k0 + AHEAD, wide)
                    copy_tile(tiles, write + A_SIZE, BLOCK_N, b_t, n0, b_from, k0 + AHEAD, True)

                # multiply
                multiply(k % 2, a_frag, b_frag, acc)

        # store
        wait_group(0)
        store_tile(c, acc, m0 + warp_m, n0 + warp_n, lane, paired, operands)

    return igemm_mma


def prepare(b, problem):
    """The transpose of B, once, its rows padded to whole pieces of 16 bytes."""
    return k_major.transposed(b)


def multiply(a, b_t, c, kind, operands=()):
    """Launch the kernel for values of this kind, as bytes: c = a @ b_t transposed."""
    M, N = c.shape
    K = a.shape[1]
    wide = aligned(a)
    full = wide and M % BLOCK_M == 0 and N % BLOCK_N == 0 and K % BLOCK_K == 0 and K >= AHEAD
    blocks = -(-M // BLOCK_M) * -(-N // BLOCK_N)
    paired = aligned(c, to=2 * c.dtype.itemsize)
    specialise(full, kind)[blocks, THREADS, 0, SHARED_BYTES](a, b_t, c, K, (wide, paired), operands)


def launch(a, b_t, c, finish=None):
    """c = a @ b; a `finish` of helpers/quantised makes int8 of the sums before they are stored."""
    if finish is None:
        return multiply(a, b_t, c, S8)
    multiply(a, b_t, c, S8._replace(store=finish.store), finish.operands)
