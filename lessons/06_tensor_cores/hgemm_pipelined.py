"""hgemm_pipelined: block and warp tiles in shared memory, fragments read from there by `ldmatrix`.

Previous step: hgemm_swizzled
New idea: a fragment is scattered over eight rows, so ordinary loads would fetch two values at a time. `ldmatrix` lets
    each lane name one row of 16 bytes, and hands every lane the two values that are its own: four 8 x 8 matrices with
    one instruction, and transposed if asked, as B needs it.
Loads per FMA: a warp reads (WARP_M + WARP_N) / (WARP_M * WARP_N) = 0.05 shared values, a block
    1 / BLOCK_M + 1 / BLOCK_N = 0.016 global values.
Run: python -m lessons.06_tensor_cores hgemm_pipelined
"""

from numba import cuda, float32, uint32
from numba.types import float16

from lessons.tensorcores import (
    HALVES,
    aligned2,
    aligned8,
    commit_group,
    copy1_guarded,
    copy8_guarded,
    half_array,
    ldmatrix4,
    ldmatrix4_transposed,
    mma_m16n8k16,
    store2_guarded,
    wait_group,
)
from lessons.unrolled import inlined, unroll, unrolled
from lessons.wide import jit

REQUIRES = "8.0"
BLOCK_M, BLOCK_N, BLOCK_K = 128, 256, 64
WARP_M, WARP_N = 64, 64
STAGES = 4
GROUP_M = 8
BLOCKS_PER_SM = 1  # leaves each thread at most 65536 / THREADS / BLOCKS_PER_SM registers
TUNABLES = {"BLOCK_M": (64, 128), "BLOCK_N": (64, 128), "WARP_M": (32, 64), "WARP_N": (32, 64), "BLOCKS_PER_SM": (1, 2)}

MMA_M, MMA_N, MMA_K = 16, 8, 16  # the tile that one instruction multiplies
if BLOCK_M % WARP_M or BLOCK_N % WARP_N or WARP_M % MMA_M or WARP_N % (2 * MMA_N) or BLOCK_K % 64:
    raise ValueError(f"{BLOCK_M=} {BLOCK_N=} must be multiples of {WARP_M=} {WARP_N=}, these of 16, {BLOCK_K=} of 64")
WARPS_N = BLOCK_N // WARP_N
THREADS = BLOCK_M // WARP_M * WARPS_N * 32
A_SIZE, B_SIZE = BLOCK_M * BLOCK_K, BLOCK_K * BLOCK_N
if THREADS > 1024 or A_SIZE % (HALVES * THREADS) or B_SIZE % (HALVES * THREADS):
    raise ValueError(f"{BLOCK_M=} {BLOCK_N=} {BLOCK_K=} do not divide among {THREADS=}")
ROWS, COLUMNS = WARP_M // MMA_M, WARP_N // MMA_N  # instructions that tile a warp's tile
STAGE = A_SIZE + B_SIZE  # values of a pair of tiles
LAST, AHEAD, PENDING = (STAGES - 1) * STAGE, (STAGES - 1) * BLOCK_K, STAGES - 2
SHARED_BYTES = 2 * STAGES * STAGE
K_STEPS, ACC_ROW = BLOCK_K // MMA_K, COLUMNS * 4
A_FRAG, B_FRAG, ACC = ROWS * 8, COLUMNS * 4, ROWS * ACC_ROW


@inlined
def place(row, column, columns):
    """Where in a tile that is so many columns wide an element lies."""
    return row * columns + (column ^ row % uint32(8) * uint32(HALVES))


@inlined
def stage_tile(tile, start, rows, columns, array, row0, column0, wide):
    """Start tile[start:] = `rows` x `columns` of the array, from (row0, column0) on; what lies outside counts as zero."""
    thread = uint32(cuda.threadIdx.x)
    if wide:
        for first in range(0, rows * columns, HALVES * THREADS):
            at = uint32(first) + thread * uint32(HALVES)
            row, column = at // uint32(columns), at % uint32(columns)
            copy8_guarded(tile, start + place(row, column, uint32(columns)), array, row0 + row, column0 + column)
    else:
        for first in range(0, rows * columns, THREADS):
            row, column = (uint32(first) + thread) // uint32(columns), (uint32(first) + thread) % uint32(columns)
            copy1_guarded(tile, start + place(row, column, uint32(columns)), array, row0 + row, column0 + column)


@inlined
def load_fragments(tiles, start, warp_m, warp_n, k, a_frag, b_frag):
    """Sixteen k of the tiles to fragments: lanes 0-15 name rows, lanes 16-31 the same rows eight columns further."""
    lane = uint32(cuda.threadIdx.x) % uint32(32)
    row, column = lane % uint32(16), lane // uint32(16) * uint32(8)
    for i in range(ROWS):
        m = warp_m + uint32(i * MMA_M) + row
        ldmatrix4(a_frag, i * 8, tiles, start + place(m, k + column, uint32(BLOCK_K)))
    for j in range(0, COLUMNS, 2):
        n = warp_n + uint32(j * MMA_N) + column
        ldmatrix4_transposed(b_frag, j * 4, tiles, start + uint32(A_SIZE) + place(k + row, n, uint32(BLOCK_N)))


@inlined
def multiply(a_frag, b_frag, acc):
    for i in range(ROWS):
        for j in range(COLUMNS):
            mma_m16n8k16(acc, i * ACC_ROW + j * 4, a_frag, i * 8, b_frag, j * 4)


@inlined
def store_row(c, m, n, acc, first, paired):
    """A row of a warp's instructions, 16 rows of C from (m, n) on, from acc[first] on."""
    lane = uint32(cuda.threadIdx.x) % uint32(32)
    m, n = m + lane // uint32(4), n + lane % uint32(4) * uint32(2)
    for j in range(COLUMNS):
        store2_guarded(c, m, n + j * MMA_N, acc, first + uint32(4 * j), paired)
        store2_guarded(c, m + 8, n + j * MMA_N, acc, first + uint32(4 * j + 2), paired)


@inlined
def stage_tiles(tiles, start, a, b, m0, n0, k0, wide):
    """Start the pair of tiles of BLOCK_K k from k0 on, from tiles[start] on, and make its copies a group."""
    stage_tile(tiles, start, BLOCK_M, BLOCK_K, a, m0, k0, wide)
    stage_tile(tiles, start + uint32(A_SIZE), BLOCK_K, BLOCK_N, b, k0, n0, wide)
    commit_group()


@jit(THREADS, BLOCKS_PER_SM)
@unroll
def hgemm_pipelined(a, b, c, wide, paired):
    tiles = half_array(0)  # dynamic shared memory: a kernel may have more than 48 KiB of it
    a_frag = cuda.local.array(A_FRAG, float16)
    b_frag = cuda.local.array(B_FRAG, float16)
    acc = cuda.local.array(ACC, float32)
    M, N = c.shape
    K = a.shape[1]

    # locate: the block; blocks walk down GROUP_M rows before they move one column to the right
    blocks_m, blocks_n = (M + BLOCK_M - 1) // BLOCK_M, (N + BLOCK_N - 1) // BLOCK_N
    group, turn = cuda.blockIdx.x // (GROUP_M * blocks_n), cuda.blockIdx.x % (GROUP_M * blocks_n)
    rows = min(blocks_m - group * GROUP_M, GROUP_M)
    m0 = (group * GROUP_M + turn % rows) * BLOCK_M
    n0 = turn // rows * BLOCK_N

    # locate: the warp
    warp = uint32(cuda.threadIdx.x) // uint32(32)
    warp_m, warp_n = warp // uint32(WARPS_N) * uint32(WARP_M), warp % uint32(WARPS_N) * uint32(WARP_N)

    for i in unrolled(ROWS):
        for j in range(ACC_ROW):
            acc[i * ACC_ROW + j] = float32(0.0)

    # stage: all pairs of tiles but one
    for stage in range(STAGES - 1):
        stage_tiles(tiles, uint32(stage * STAGE), a, b, m0, n0, stage * BLOCK_K, wide)

    read, write = uint32(0), uint32((STAGES - 1) * STAGE)
    for k0 in range(0, K, BLOCK_K):
        # stage: the oldest pair is here, and nobody reads the one before it any more: into its place
        wait_group(PENDING)
        cuda.syncthreads()
        stage_tiles(tiles, write, a, b, m0, n0, k0 + AHEAD, wide)

        # multiply
        for k in unrolled(K_STEPS):
            load_fragments(tiles, read, warp_m, warp_n, uint32(k * MMA_K), a_frag, b_frag)
            multiply(a_frag, b_frag, acc)
        write = read
        read = read + uint32(STAGE) if read < uint32(LAST) else uint32(0)

    # store
    for i in unrolled(ROWS):
        store_row(c, m0 + warp_m + i * MMA_M, n0 + warp_n, acc, uint32(i * ACC_ROW), paired)


def launch(a, b, c):
    M, N = c.shape
    wide, paired = aligned8(a, b), aligned2(c)
    blocks = -(-M // BLOCK_M) * -(-N // BLOCK_N)
    hgemm_pipelined[blocks, THREADS, 0, SHARED_BYTES](a, b, c, wide, paired)
