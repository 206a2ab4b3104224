"""hgemm_shared: block and warp tiles in shared memory, fragments read from there by `ldmatrix`.

Previous step: hgemm_mma
New idea: a fragment is scattered over eight rows. `ldmatrix` lets each lane name one row of 16 bytes, and hands every
    lane the two values that are its own: four 8 x 8 matrices with one instruction, transposed if asked, as B needs
    it.
Loads per FMA: a warp reads (WARP_M + WARP_N) / (WARP_M * WARP_N) = 0.05 shared values, a block 0.016 global values.
Run: python -m lessons.06_tensor_cores hgemm_shared
"""

from numba import cuda, float32, int64
from numba.types import float16

from lessons.toolkit import memory
from lessons.toolkit.grid import jit, row_slices
from lessons.toolkit.memory import HALVES, aligned, copy8_guarded, load1_guarded, store2_guarded
from lessons.toolkit.mma import ldmatrix4, ldmatrix4_transposed, mma_m16n8k16
from lessons.toolkit.narrow import narrow
from lessons.toolkit.unroll import inlined, unroll, unrolled

REQUIRES = "8.0"
BLOCK_M, BLOCK_N, BLOCK_K = 128, 128, 64
WARP_M, WARP_N = 64, 32
BLOCKS_PER_SM = 2  # leaves each thread at most 65536 / THREADS / BLOCKS_PER_SM registers
TUNABLES = {"BLOCK_M": (64, 128), "BLOCK_N": (64, 128), "WARP_M": (32, 64), "WARP_N": (32, 64)}

MMA_M, MMA_N, MMA_K = 16, 8, 16  # the tile that one instruction multiplies
if BLOCK_M % WARP_M or BLOCK_N % WARP_N or WARP_M % MMA_M or WARP_N % (2 * MMA_N) or BLOCK_K % 64:
    raise ValueError(f"{BLOCK_M=} {BLOCK_N=} must be multiples of {WARP_M=} {WARP_N=}, these of 16, {BLOCK_K=} of 64")
WARPS_N = BLOCK_N // WARP_N
THREADS = BLOCK_M // WARP_M * WARPS_N * 32
A_SIZE, B_SIZE = BLOCK_M * BLOCK_K, BLOCK_K * BLOCK_N
if THREADS > 1024 or A_SIZE % (HALVES * THREADS) or B_SIZE % (HALVES * THREADS):
    raise ValueError(f"{BLOCK_M=} {BLOCK_N=} {BLOCK_K=} do not divide among {THREADS=}")
ROWS, COLUMNS = WARP_M // MMA_M, WARP_N // MMA_N  # instructions that tile a warp's tile
K_STEPS, ACC_ROW = BLOCK_K // MMA_K, COLUMNS * 4
A_FRAG, B_FRAG, ACC = ROWS * 8, COLUMNS * 4, ROWS * ACC_ROW


@inlined
def place(row, column, columns):
    """Where in a tile that is so many columns wide an element lies."""
    return row * columns + column


@inlined
def multiply(a_frag, b_frag, acc):
    for i in range(ROWS):
        for j in range(COLUMNS):
            mma_m16n8k16(acc, i * ACC_ROW + j * 4, a_frag, i * 8, b_frag, j * 4)


@inlined
@narrow
def store_row(c, m, n, acc, first, paired):
    """A row of a warp's instructions, 16 rows of C from (m, n) on, from acc[first] on."""
    lane = cuda.threadIdx.x % 32
    m, n = m + lane // 4, n + lane % 4 * 2
    for j in range(COLUMNS):
        store2_guarded(c, m, n + j * MMA_N, acc, first + 4 * j, paired)
        store2_guarded(c, m + 8, n + j * MMA_N, acc, first + 4 * j + 2, paired)


def specialise(place):
    """Build the kernel for tiles in which `place` says where elements lie."""

    @inlined
    @narrow
    def stage_tile(tile, rows, columns, array, row0, column0, wide):
        """Start tile = `rows` x `columns` of the array, from (row0, column0) on; what lies outside counts as zero."""
        thread = cuda.threadIdx.x
        if wide:
            for start in range(0, rows * columns, HALVES * THREADS):
                at = start + thread * HALVES
                row, column = at // columns, at % columns
                copy8_guarded(tile, place(row, column, columns), array, row0 + row, column0 + column, True)
        else:
            for start in range(0, rows * columns, THREADS):
                row, column = (start + thread) // columns, (start + thread) % columns
                load1_guarded(tile, place(row, column, columns), array, row0 + row, column0 + column)

    @inlined
    @narrow
    def load_fragments(a_tile, b_tile, warp_m, warp_n, k, a_frag, b_frag):
        """Sixteen k of the tiles to fragments: lanes 0-15 name rows, lanes 16-31 the same eight columns further."""
        lane = cuda.threadIdx.x % 32
        row, column = lane % 16, lane // 16 * 8
        for i in range(ROWS):
            ldmatrix4(a_frag, i * 8, a_tile, place(warp_m + i * MMA_M + row, k + column, BLOCK_K))
        for j in range(0, COLUMNS, 2):
            ldmatrix4_transposed(b_frag, j * 4, b_tile, place(k + row, warp_n + j * MMA_N + column, BLOCK_N))

    @jit(THREADS, BLOCKS_PER_SM)
    @narrow
    @unroll
    def hgemm_shared(a, b, c, wide, paired):
        a_tile, b_tile = memory.half_array(A_SIZE), memory.half_array(B_SIZE)
        a_frag, b_frag = cuda.local.array(A_FRAG, float16), cuda.local.array(B_FRAG, float16)
        acc = cuda.local.array(ACC, float32)
        K = a.shape[1]

        # locate
        warp = cuda.threadIdx.x // 32
        warp_m, warp_n = warp // WARPS_N * WARP_M, warp % WARPS_N * WARP_N
        m0 = cuda.blockIdx.y * BLOCK_M
        n0 = int64(cuda.blockIdx.x) * BLOCK_N  # N and K may need 64 bits

        for i in unrolled(ROWS):
            for j in range(ACC_ROW):
                acc[i * ACC_ROW + j] = float32(0.0)
        for k0 in range(int64(0), K, BLOCK_K):
            # stage
            stage_tile(a_tile, BLOCK_M, BLOCK_K, a, m0, k0, wide)
            stage_tile(b_tile, BLOCK_K, BLOCK_N, b, k0, n0, wide)
            memory.commit_group()
            memory.wait_group(0)
            cuda.syncthreads()

            # multiply
            for k in unrolled(K_STEPS):
                load_fragments(a_tile, b_tile, warp_m, warp_n, k * MMA_K, a_frag, b_frag)
                multiply(a_frag, b_frag, acc)
            cuda.syncthreads()

        # store
        for i in unrolled(ROWS):
            store_row(c, m0 + warp_m + i * MMA_M, n0 + warp_n, acc, i * ACC_ROW, paired)

    return hgemm_shared


hgemm_shared = specialise(place)


def launch(a, b, c, kernel=hgemm_shared):
    M, N = c.shape
    wide, paired = aligned(a, b), aligned(c, to=4)
    for rows, grid in row_slices(M, N, BLOCK_M, BLOCK_N):
        kernel[grid, THREADS](a[rows], b, c[rows], wide, paired)
