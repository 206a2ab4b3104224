"""gemm_tuned: the last steps: an order of blocks for L2, the k loop written out, as many registers as there are.

Previous step: gemm_double_buffered
New idea: none of its own, but several that each give a little. Blocks walk down GROUP_M rows before they move one
    column to the right, so that those that run together share tiles in L2. A thread computes 16 x 8 elements, and
    launch bounds grant it the registers. The k loop is written out: addresses become constants, and the values of the
    next k are on their way while those of this k are multiplied, across the barrier too. Whole tiles have no guards.
Loads per FMA: (THREAD_M + THREAD_N) / (THREAD_M * THREAD_N) = 0.19 shared values in 0.05 instructions;
    1 / BLOCK_M + 1 / BLOCK_N = 0.016 global values, most of them from L2.
Run: python -m lessons.04_register_blocking gemm_tuned
"""

from functools import lru_cache

from numba import cuda, float32, int64, uint32, uint64

from lessons.toolkit.grid import jit
from lessons.toolkit.memory import VECTOR, aligned, load4, load4_guarded, shared_array, store4, store4_guarded
from lessons.toolkit.unroll import inlined, unroll, unrolled

BLOCK_M, BLOCK_N, BLOCK_K = 128, 128, 8
THREAD_M, THREAD_N = 16, 8
LANES_M, LANES_N = 4, 8  # the 32 lanes of a warp, as rows and columns
GROUP_M = 16  # rows of blocks that run together and share columns of B in L2
BLOCKS_PER_SM = 2  # leaves each thread at most 65536 / THREADS / BLOCKS_PER_SM registers
TUNABLES = {
    "BLOCK_M": (64, 128, 256), "BLOCK_N": (64, 128, 256), "BLOCK_K": (8, 16, 32), "THREAD_M": (8, 16),
    "THREAD_N": (8, 16), "GROUP_M": (1, 4, 8, 16), "BLOCKS_PER_SM": (1, 2),
}  # fmt: skip

WARP_M, WARP_N = LANES_M * THREAD_M, LANES_N * THREAD_N
if BLOCK_M % WARP_M or BLOCK_N % WARP_N or THREAD_M % VECTOR or THREAD_N % VECTOR:
    raise ValueError(f"{BLOCK_M=} {BLOCK_N=} must be multiples of {WARP_M=} {WARP_N=}, {THREAD_M=} {THREAD_N=} of 4")
WARPS_N = BLOCK_N // WARP_N
THREADS = BLOCK_M // WARP_M * WARPS_N * 32
A_COLUMNS, B_COLUMNS = BLOCK_K // VECTOR, BLOCK_N // VECTOR  # 128-bit pieces in a row of the tile
A_ROWS, B_ROWS = THREADS // A_COLUMNS, THREADS // B_COLUMNS  # rows staged at a time
REGISTERS = min(255, 65536 // (THREADS * BLOCKS_PER_SM))
if THREADS > 1024 or REGISTERS < THREAD_M * THREAD_N + THREAD_M + THREAD_N:
    raise ValueError(f"{THREAD_M=} {THREAD_N=} {BLOCKS_PER_SM=}: more than {REGISTERS=} for each of {THREADS=}")
if BLOCK_M % A_ROWS or BLOCK_K % B_ROWS or BLOCK_K % VECTOR:
    raise ValueError(f"{BLOCK_M=} {BLOCK_N=} {BLOCK_K=} do not divide among {THREADS=}")
PAD = VECTOR  # keeps the transposed stores apart, and each row on a 16-byte boundary
A_STRIDE, B_STRIDE = BLOCK_M + PAD, BLOCK_N
A_SIZE, B_SIZE = BLOCK_K * A_STRIDE, BLOCK_K * B_STRIDE
A_BOTH, B_BOTH = 2 * A_SIZE, 2 * B_SIZE
SHARED_BYTES = 49152  # what a block may have
if 4 * (A_BOTH + B_BOTH) > SHARED_BYTES:
    raise ValueError(f"{BLOCK_K=}: the tiles take {4 * (A_BOTH + B_BOTH)} bytes, a block has {SHARED_BYTES}")
A_STAGE, B_STAGE = BLOCK_M // A_ROWS * VECTOR, BLOCK_K // B_ROWS * VECTOR  # values that a thread stages
A_FRAG, B_FRAG, ACC = 2 * THREAD_M, 2 * THREAD_N, THREAD_M * THREAD_N  # the fragments of this k and of the next


@lru_cache
def specialise(full):
    """Build the kernel; `full` promises whole tiles and aligned rows, so that it needs no guards."""

    @inlined
    def load_tiles(a, b, m0, n0, a_from, b_from, k0, a_stage, b_stage, wide):
        """Global memory to registers, whole tiles from flat offsets on; what lies outside A or B counts as zero."""
        K, N = b.shape
        thread = uint32(cuda.threadIdx.x)
        for i in range(0, A_STAGE, VECTOR):
            if full:
                load4(a_stage, i, a, a_from + k0 + i // VECTOR * A_ROWS * K)
            else:
                m, k = m0 + i // VECTOR * A_ROWS + thread // A_COLUMNS, k0 + thread % A_COLUMNS * VECTOR
                load4_guarded(a_stage, i, a, m, k, wide)
        for i in range(0, B_STAGE, VECTOR):
            if full:
                load4(b_stage, i, b, b_from + k0 * N + i // VECTOR * B_ROWS * N)
            else:
                k, n = k0 + i // VECTOR * B_ROWS + thread // B_COLUMNS, n0 + thread % B_COLUMNS * VECTOR
                load4_guarded(b_stage, i, b, k, n, wide)

    @inlined
    def store_tiles(a_stage, b_stage, a_tile, a_start, b_tile, b_start):
        """Registers to shared memory; A is transposed on the way."""
        thread = uint32(cuda.threadIdx.x)
        for i in range(0, A_STAGE, VECTOR):
            m, k = i // VECTOR * A_ROWS + thread // A_COLUMNS, thread % A_COLUMNS * VECTOR
            for v in range(VECTOR):
                a_tile[uint64(a_start + (k + v) * A_STRIDE + m)] = a_stage[i + v]
        for i in range(0, B_STAGE, VECTOR):
            k, n = i // VECTOR * B_ROWS + thread // B_COLUMNS, thread % B_COLUMNS * VECTOR
            store4(b_tile, b_start + k * B_STRIDE + n, b_stage, i)

    @inlined
    def load_k(half, a_at, b_at, a_tile, b_tile, a_frag, b_frag):
        """One k of the tiles to a half of the fragments; `a_at` and `b_at` are where this thread's values lie."""
        for i in range(0, THREAD_M, VECTOR):
            load4(a_frag, half * THREAD_M + i, a_tile, a_at + i * LANES_M)
        for j in range(0, THREAD_N, VECTOR):
            load4(b_frag, half * THREAD_N + j, b_tile, b_at + j * LANES_N)

    @inlined
    def multiply_k(half, a_frag, b_frag, acc):
        """The products of one k. j runs to and fro: where i moves on, a value of B is still at the multiplier."""
        for i in range(THREAD_M):
            for step in range(THREAD_N):
                j = step if i % 2 == 0 else THREAD_N - 1 - step
                acc[i * THREAD_N + j] += a_frag[half * THREAD_M + i] * b_frag[half * THREAD_N + j]

    @inlined
    def store_row(c, m, n0, thread_n, acc, i, wide):
        """This thread's outputs of row `m`, from acc[i * THREAD_N] on; what lies outside C is left out."""
        N = c.shape[1]
        for j in range(0, THREAD_N, VECTOR):
            n = n0 + thread_n + j * LANES_N
            if full:
                store4(c, m * N + n, acc, i * THREAD_N + j)
            else:
                store4_guarded(c, m, n, acc, i * THREAD_N + j, wide)

    @jit(THREADS, BLOCKS_PER_SM)
    @unroll
    def gemm_tuned(a, b, c, wide):
        a_tile, b_tile = shared_array(A_BOTH), shared_array(B_BOTH)
        a_stage, b_stage = cuda.local.array(A_STAGE, float32), cuda.local.array(B_STAGE, float32)
        a_frag, b_frag = cuda.local.array(A_FRAG, float32), cuda.local.array(B_FRAG, float32)
        acc = cuda.local.array(ACC, float32)
        M, N = c.shape
        K = a.shape[1]

        # locate: the block; blocks walk down GROUP_M rows before they move one column to the right
        blocks_m, blocks_n = (M + BLOCK_M - 1) // BLOCK_M, (N + BLOCK_N - 1) // BLOCK_N
        group, place = cuda.blockIdx.x // (GROUP_M * blocks_n), cuda.blockIdx.x % (GROUP_M * blocks_n)
        rows = min(blocks_m - group * GROUP_M, GROUP_M)
        m0 = (group * GROUP_M + place % rows) * BLOCK_M
        n0 = place // rows * BLOCK_N

        # locate: of each 4 * LANES_M rows (4 * LANES_N columns) of a warp's tile a thread has 4. Lanes l and l^1 read
        # the same piece of b_tile, l and l^2 of a_tile: such pairs let a 128-bit shared load serve half a warp
        thread = uint32(cuda.threadIdx.x)
        warp, lane = thread // 32, thread % 32
        thread_m = warp // WARPS_N * WARP_M + (lane // 16 * 2 + lane % 2) * VECTOR
        thread_n = warp % WARPS_N * WARP_N + lane // 2 % LANES_N * VECTOR

        # locate: what the thread stages, as flat offsets for k0 = 0, so that the loop need not work them out
        a_from = (m0 + thread // A_COLUMNS) * K + thread % A_COLUMNS * VECTOR
        b_from = thread // B_COLUMNS * N + n0 + thread % B_COLUMNS * VECTOR

        for i in range(ACC):
            acc[i] = float32(0.0)

        # stage: the first pair of tiles
        load_tiles(a, b, m0, n0, a_from, b_from, 0, a_stage, b_stage, wide)
        store_tiles(a_stage, b_stage, a_tile, 0, b_tile, 0)
        cuda.syncthreads()

        # multiply: the values of the first k; those of each next k are read while one is multiplied
        load_k(int64(0), thread_m, thread_n, a_tile, b_tile, a_frag, b_frag)
        a_start, b_start = 0, 0
        for k0 in range(0, K, BLOCK_K):
            # stage: ask for the next pair, which travels while this one is multiplied. After the last comes the first
            # again: with an `if` around them, the compiler would move the loads behind the multiplications
            k_next = k0 + BLOCK_K if k0 + BLOCK_K < K else 0
            a_next, b_next = A_SIZE - a_start, B_SIZE - b_start
            load_tiles(a, b, m0, n0, a_from, b_from, k_next, a_stage, b_stage, wide)

            for k in unrolled(BLOCK_K):  # int64(), as for a literal Numba would compile a function once more
                # stage: the next pair. Of this one, all threads have the last k in registers when they meet
                if k == BLOCK_K - 1:
                    store_tiles(a_stage, b_stage, a_tile, a_next, b_tile, b_next)
                    cuda.syncthreads()
                    a_start, b_start = a_next, b_next

                # multiply
                a_at = a_start + (k + 1) % BLOCK_K * A_STRIDE + thread_m
                b_at = b_start + (k + 1) % BLOCK_K * B_STRIDE + thread_n
                load_k(int64((k + 1) % 2), a_at, b_at, a_tile, b_tile, a_frag, b_frag)
                multiply_k(int64(k % 2), a_frag, b_frag, acc)

        # store
        for i in unrolled(THREAD_M):
            m = m0 + thread_m + i // VECTOR * VECTOR * LANES_M + i % VECTOR
            store_row(c, m, n0, thread_n, acc, int64(i), wide)

    return gemm_tuned


def launch(a, b, c):
    M, N = c.shape
    wide = aligned(a, b, c)
    full = wide and M % BLOCK_M == 0 and N % BLOCK_N == 0 and a.shape[1] % BLOCK_K == 0
    blocks = -(-M // BLOCK_M) * -(-N // BLOCK_N)
    specialise(full)[blocks, THREADS](a, b, c, wide)
