"""hgemm_sparse: of every four weights along k two are zero, and the matrix unit passes over them.

Previous step: hgemm_register_operand
Builds on: hgemm_pipelined
New idea: `prepare` keeps, of every four values of a column of B, the two of the largest magnitude, and two bits for
    each that say where it was. An instruction takes 16 x 16 of them, times 32 rows of the other operand, of which the
    matrix unit picks the values that meet a weight: it does what two did. The sparse operand must be the left one, so
    the product is the transpose of C: rows of the left operand are columns of B, which `prepare` stores K-major.
Loads per FMA: a warp reads (WARP_M + WARP_N / 2) / (WARP_M * WARP_N) = 0.02 shared values.
Run: python -m lessons.09_fewer_bits hgemm_sparse
"""

import importlib
from functools import lru_cache

from numba import cuda, float32, int64, uint32
from numba.types import float16

from lessons.toolkit import card, memory
from lessons.toolkit.grid import jit
from lessons.toolkit.memory import HALVES, aligned, commit_group, copy8_async, half_array, wait_group
from lessons.toolkit.mma import ldmatrix4_at, mma_sp_m16n8k32, shared_address, to_half
from lessons.toolkit.narrow import narrow
from lessons.toolkit.pasted import pasted, walk
from lessons.toolkit.unroll import inlined, unroll, unrolled

pipelined = importlib.import_module("lessons.06_tensor_cores.hgemm_pipelined")
pruned = importlib.import_module("lessons.09_fewer_bits.helpers.pruned")

REQUIRES = "8.0"
ALGORITHM = "2:4"
BLOCK_K = 64
KEPT = BLOCK_K // 2  # values of a row of the tile of B
TILES = (128, 256, 4), (128, 128, 3)  # 136 KiB of shared memory; 75, where a block has no more than 99
# STAGES: pairs of tiles in shared memory
BLOCK_M, BLOCK_N, STAGES = card.largest(TILES, lambda tile: tile[2] * (128 * tile[0] + 72 * tile[1]))
WARP_M, WARP_N, STRIDE = pipelined.WARP_M, pipelined.WARP_N, pipelined.STRIDE
GROUP_M = 16  # rows of blocks that run together and share columns of B in L2
BLOCKS_PER_SM = 1  # leaves each thread at most 65536 / THREADS / BLOCKS_PER_SM registers
TUNABLES = {"BLOCK_M": (128, 256), "BLOCK_N": (128, 256), "STAGES": (2, 3, 4), "GROUP_M": (1, 2, 4, 8, 16)}

MMA_N, MMA_M, MMA_K = 16, 8, 32  # the tile that one instruction multiplies: N x K, half of it kept, by K x M
if BLOCK_M % WARP_M or BLOCK_N % WARP_N or WARP_M % MMA_M or WARP_N % pruned.ROWS or BLOCK_K != 64 or STAGES < 2:
    raise ValueError(f"{BLOCK_M=} {BLOCK_N=} must be multiples of {WARP_M=} {WARP_N=}, {BLOCK_K=} 64, {STAGES=} > 1")
WARPS_N = BLOCK_N // WARP_N
THREADS = BLOCK_M // WARP_M * WARPS_N * 32
A_PIECES, B_PIECES = BLOCK_K // HALVES, KEPT // HALVES  # of 16 bytes in a row: what threads beside each other copy
A_ROWS, B_ROWS = THREADS // A_PIECES, THREADS // B_PIECES  # of a tile, with one copy of each thread
K_STEPS = BLOCK_K // MMA_K
PLACE_WORDS = BLOCK_N // pruned.ROWS * K_STEPS * 32  # that say where a tile's weights belong
QUADS = K_STEPS * 32 // 4  # copies of four words, for 32 rows
if THREADS > 1024 or BLOCK_M % A_ROWS or BLOCK_N % B_ROWS or PLACE_WORDS > 4 * THREADS:
    raise ValueError(f"{BLOCK_M=} {BLOCK_N=} do not divide among {THREADS=}")
A_SIZE, STAGE = BLOCK_M * BLOCK_K, BLOCK_M * BLOCK_K + BLOCK_N * KEPT  # values of a tile of A, of a pair
AHEAD = (STAGES - 1) * BLOCK_K
PENDING = STAGES - 2  # groups that may still travel when the next pair is needed
BYTES = 2  # of a value
SHARED_BYTES = BYTES * STAGES * STAGE
if BLOCK_M * BLOCK_N // WARP_N * STRIDE > STAGES * STAGE:
    raise ValueError(f"{STAGES=} must hold the results of {BLOCK_M=} {BLOCK_N=}")
ROWS, COLUMNS, ACC_ROW = WARP_N // MMA_N, WARP_M // MMA_M, WARP_M // MMA_M * 4  # instructions that tile a warp's tile
A_FRAG, B_FRAG, ACC, PLACE_FRAG = COLUMNS * 8, ROWS * 8, ROWS * ACC_ROW, ROWS // 2


@inlined  # without narrow, under which the main loop is 3% slower
def place_b(row, column):
    """Where in a tile of B an element lies: two rows fill all banks, so both are permuted alike."""
    return row * uint32(KEPT) + (column ^ row // uint32(2) % uint32(B_PIECES) * uint32(HALVES))


@inlined
@narrow
def load_fragments(tiles, staged_places, start, first, a_at, b_at, a_frag, b_frag, place_frag):
    """32 k of the tiles to fragments; the lane names rows at a_at and b_at, in bytes, and a word of the places."""
    for i in range(ROWS):
        ldmatrix4_at(b_frag, i * 8, tiles, start + b_at + i * MMA_N * KEPT * BYTES)
    for j in range(COLUMNS):
        ldmatrix4_at(a_frag, j * 8, tiles, start + a_at + j * MMA_M * BLOCK_K * BYTES)
    for i in range(PLACE_FRAG):
        place_frag[i] = staged_places[first + i * K_STEPS * 32]


@inlined
@unroll
def multiply(a_frag, b_frag, place_frag, acc):
    """The products of 32 k."""
    for j in unrolled(COLUMNS):
        for i in unrolled(ROWS):
            mma_sp_m16n8k32(acc, i * ACC_ROW + j * 4, b_frag, i * 8, a_frag, j * 8, place_frag, i // 2, i % 2)


@pasted
@narrow
@unroll
def store_tile(c, tiles, warp, lane, acc, m0, n0, warp_m, warp_n, wide, full):
    """The sums, transposed through shared memory, to the warp's tile, (warp_m, warp_n) within the block's."""
    own = warp * (WARP_M * STRIDE)
    first = int64(own + lane % 4 * (2 * STRIDE) + lane // 4)  # so constants become part of the instruction
    for i in unrolled(ROWS):
        for j in unrolled(COLUMNS):
            for v in unrolled(4):
                at = (j * MMA_M + v % 2) * STRIDE + i * MMA_N + v // 2 * 8
                tiles[first + at] = to_half(acc[i * ACC_ROW + j * 4 + v])
    cuda.syncwarp()
    pipelined.store_rows(c, tiles, own, lane, m0, n0, warp_m, warp_n, wide, full)


@lru_cache
def specialise(full):
    """Build the kernel; `full` promises whole tiles and aligned rows, so that it needs no guards."""

    @inlined
    @narrow
    def copy_tiles(tiles, staged_places, stage, a, kept, places, m0, n0, k0, wide):
        """Start the stage's pair of tiles, from k0 on, and the words for its weights; zeros around A."""
        K, half = a.shape[1], kept.shape[1]
        thread = cuda.threadIdx.x
        start = stage * STAGE
        row, column = thread // A_PIECES, thread % A_PIECES * HALVES
        # A_ROWS rows further the XOR is the same: all places are constants away from the first
        first = start + pipelined.place(row, column, BLOCK_K)
        for i in range(0, BLOCK_M, A_ROWS):
            at = first + i * BLOCK_K
            if full:
                copy8_async(tiles, at, a, (m0 + row + i) * K + k0 + column)
            else:
                memory.copy8_guarded(tiles, at, a, m0 + i + row, k0 + column, wide)
        row, column = thread // B_PIECES, thread % B_PIECES * HALVES
        first = start + A_SIZE + place_b(row, column)
        for i in range(0, BLOCK_N, B_ROWS):
            copy8_async(tiles, first + i * KEPT, kept, (n0 + row + i) * half + k0 // 2 + column)
        if thread < PLACE_WORDS // 4:
            rows, quad = n0 // pruned.ROWS + thread // QUADS, thread % QUADS
            source = (rows * places.shape[1] + k0 // MMA_K) * 32 + quad * 4
            memory.copy4_async(staged_places, stage * PLACE_WORDS + thread * 4, places, source)

    @jit(THREADS, BLOCKS_PER_SM)
    @narrow
    @unroll
    def hgemm_sparse(a, kept, places, c, wide):
        tiles = half_array(0)  # dynamic shared memory: a launch may ask for more than 48 KiB of it
        staged_places = cuda.shared.array(STAGES * PLACE_WORDS, uint32, alignment=16)
        a_frag, b_frag = cuda.local.array(A_FRAG, float16), cuda.local.array(B_FRAG, float16)
        place_frag, acc = cuda.local.array(PLACE_FRAG, uint32), cuda.local.array(ACC, float32)
        a_at, b_at = cuda.local.array(K_STEPS, uint32), cuda.local.array(K_STEPS, uint32)
        M, N = c.shape
        K = a.shape[1]

        # locate: the block; blocks walk down GROUP_M rows before they move one column to the right
        blocks_m, blocks_n = (M + BLOCK_M - 1) // BLOCK_M, (N + BLOCK_N - 1) // BLOCK_N
        m0, n0 = walk(cuda.blockIdx.x, blocks_m, blocks_n, GROUP_M, BLOCK_M, BLOCK_N)

        # locate: the warp, and the rows that the lane names to ldmatrix: of B sixteen, and the same eight columns
        # further; of A eight, each next eight lanes eight columns further
        thread = cuda.threadIdx.x
        warp, lane = thread // 32, thread % 32
        warp_m, warp_n = warp // WARPS_N * WARP_M, warp % WARPS_N * WARP_N
        for k in unrolled(K_STEPS):
            column = k * MMA_K + lane // 8 * HALVES
            a_at[k] = shared_address(tiles, pipelined.place(warp_m + lane % 8, column, BLOCK_K))
            column = k * MMA_K // 2 + lane // 16 * HALVES
            b_at[k] = shared_address(tiles, A_SIZE + place_b(warp_n + lane % 16, column))
        word = warp_n * K_STEPS + lane

        # stage: the first STAGES - 1 pairs of tiles, a group each
        for stage in range(STAGES - 1):
            if stage * BLOCK_K < K:
                copy_tiles(tiles, staged_places, stage, a, kept, places, m0, n0, stage * BLOCK_K, wide)
            commit_group()

        for i in unrolled(ROWS):
            for j in range(ACC_ROW):
                acc[i * ACC_ROW + j] = float32(0.0)
        read, write = 0, STAGES - 1
        for k0 in range(int64(0), K, BLOCK_K):  # K may need 64 bits
            # stage: this pair has arrived, and all threads are done with the one before: the last pair goes there
            wait_group(PENDING)
            cuda.syncthreads()
            if k0 + AHEAD < K:
                copy_tiles(tiles, staged_places, write, a, kept, places, m0, n0, k0 + AHEAD, wide)
            commit_group()  # in the last rounds an empty one: so PENDING counts right

            # multiply
            start, at = read * (BYTES * STAGE), read * PLACE_WORDS + word
            for k in unrolled(K_STEPS):
                load_fragments(tiles, staged_places, start, at + k * 32, a_at[k], b_at[k], a_frag, b_frag, place_frag)
                multiply(a_frag, b_frag, place_frag, acc)
            write = read
            read = read + 1 if read < STAGES - 1 else 0

        # store
        wait_group(0)
        cuda.syncthreads()
        store_tile(c, tiles, warp, lane, acc, m0, n0, warp_m, warp_n, wide, full)

    return hgemm_sparse


def prepare(b, problem):
    """B, pruned: the values that are kept, rows along k, and words that say where these belong."""
    return pruned.packed(b, BLOCK_N, BLOCK_K)


def launch(a, weights, c):
    kept, places = weights
    M, N = c.shape
    wide = aligned(a, c)
    full = wide and M % BLOCK_M == 0 and N % BLOCK_N == 0 and a.shape[1] % BLOCK_K == 0
    blocks = -(-M // BLOCK_M) * -(-N // BLOCK_N)
    specialise(full)[blocks, THREADS, 0, SHARED_BYTES](a, kept, places, c, wide)
