"""gemm_tuned: tiles travel while others are multiplied; warp tiles, an unrolled k loop, an order of blocks for L2.

Previous step: gemm_register_blocked
New idea: overlap. While a block multiplies one pair of tiles, the next pair is on its way into the other half of its
    shared memory: one barrier per pair, and nobody waits for memory. A thread computes 16 x 8, a warp 64 x 64.
Loads per FMA: (THREAD_M + THREAD_N) / (THREAD_M * THREAD_N) = 0.19 shared values in 0.05 instructions;
    1 / BLOCK_M + 1 / BLOCK_N = 0.016 global values, most of them from L2.
Run: python -m lessons.04_register_blocking gemm_tuned
"""

from functools import lru_cache

from numba import cuda, float32, int64, uint32, uint64

from lessons.unrolled import inlined, unroll, unrolled
from lessons.wide import (
    VECTOR,
    aligned,
    async_supported,
    copy1_async,
    copy1_guarded,
    copy4_async,
    copy4_guarded,
    jit,
    load4,
    load4_guarded,
    shared_array,
    store4,
    store4_guarded,
    wait_async,
)

BLOCK_M, BLOCK_N, BLOCK_K = 128, 128, 8
THREAD_M, THREAD_N = 16, 8
LANES_M, LANES_N = 4, 8  # the 32 lanes of a warp, as rows and columns
GROUP_M = 8  # rows of blocks that run together and share columns of B in L2
BLOCKS_PER_SM = 2  # leaves each thread at most 65536 / THREADS / BLOCKS_PER_SM registers
ASYNC = False  # copy to shared memory without registers, from compute capability 8.0 on; slower at this tile
TUNABLES = {
    "BLOCK_M": (64, 128, 256),
    "BLOCK_N": (64, 128, 256),
    "BLOCK_K": (8, 16, 32),
    "THREAD_M": (8, 16),
    "THREAD_N": (8, 16),
    "GROUP_M": (1, 4, 8, 16),
    "BLOCKS_PER_SM": (1, 2),
    "ASYNC": (False, True),
}
COPY_K = 8  # with 8 k by 4 m per warp, the transposed copies of A meet all banks once
SHARED_BYTES = 49152


@lru_cache
def specialise(
    full,
    BLOCK_M=BLOCK_M,
    BLOCK_N=BLOCK_N,
    BLOCK_K=BLOCK_K,
    THREAD_M=THREAD_M,
    THREAD_N=THREAD_N,
    GROUP_M=GROUP_M,
    BLOCKS_PER_SM=BLOCKS_PER_SM,
    ASYNC=ASYNC,
):
    """Build the kernel; `full` promises whole tiles and aligned rows, so that it needs no guards."""
    WARP_M, WARP_N = LANES_M * THREAD_M, LANES_N * THREAD_N
    if BLOCK_M % WARP_M or BLOCK_N % WARP_N or THREAD_M % VECTOR or THREAD_N % VECTOR:
        raise ValueError(f"{BLOCK_M=} {BLOCK_N=} must be multiples of {WARP_M=} {WARP_N=}")
    WARPS_N = BLOCK_N // WARP_N
    THREADS = BLOCK_M // WARP_M * WARPS_N * 32
    registers = min(255, 65536 // (THREADS * BLOCKS_PER_SM))
    if THREADS > 1024 or registers < THREAD_M * THREAD_N + THREAD_M + THREAD_N:
        raise ValueError(f"{THREAD_M=} {THREAD_N=} {BLOCKS_PER_SM=}: more than {registers=} for each of {THREADS=}")
    A_COLUMNS, B_COLUMNS = BLOCK_K // VECTOR, BLOCK_N // VECTOR  # 128-bit pieces in a row of the tile
    A_ROWS, B_ROWS = THREADS // A_COLUMNS, THREADS // B_COLUMNS  # rows staged at a time
    if BLOCK_M % A_ROWS or BLOCK_K % B_ROWS or BLOCK_K % COPY_K:
        raise ValueError(f"{BLOCK_M=} {BLOCK_K=} do not divide among {THREADS=}")
    COPY_M = THREADS // COPY_K
    PAD = VECTOR  # keeps the transposed stores apart, and each row on a 16-byte boundary
    A_STRIDE, B_STRIDE = BLOCK_M + PAD, BLOCK_N
    A_SIZE, B_SIZE = BLOCK_K * A_STRIDE, BLOCK_K * B_STRIDE
    A_BOTH, B_BOTH = 2 * A_SIZE, 2 * B_SIZE
    if 4 * (A_BOTH + B_BOTH) > SHARED_BYTES:
        raise ValueError(f"{BLOCK_K=}: the tiles take {4 * (A_BOTH + B_BOTH)} bytes, a block has {SHARED_BYTES}")
    A_STAGE, B_STAGE = BLOCK_M // A_ROWS * VECTOR, BLOCK_K // B_ROWS * VECTOR
    ACC = THREAD_M * THREAD_N

    @inlined
    def copy_tiles(a, b, m0, n0, k0, a_tile, a_start, b_tile, b_start, wide):
        """Global to shared memory without waiting for it; A is transposed on the way."""
        K, N = b.shape
        thread = uint32(cuda.threadIdx.x)
        m, k = thread // COPY_K, thread % COPY_K
        to, at = a_start + k * A_STRIDE + m, (m0 + m) * K + k + k0
        for m_first in range(0, BLOCK_M, COPY_M):
            for k_first in range(0, BLOCK_K, COPY_K):
                if full:
                    copy1_async(a_tile, to + k_first * A_STRIDE + m_first, a, at + k_first)
                else:
                    copy1_guarded(a_tile, to + k_first * A_STRIDE + m_first, a, m0 + m + m_first, k0 + k + k_first)
            at += COPY_M * K
        k, n = thread // B_COLUMNS, thread % B_COLUMNS * VECTOR
        to, at = b_start + k * B_STRIDE + n, (k0 + k) * N + n0 + n
        for k_first in range(0, BLOCK_K, B_ROWS):
            if full:
                copy4_async(b_tile, to + k_first * B_STRIDE, b, at)
            else:
                copy4_guarded(b_tile, to + k_first * B_STRIDE, b, k0 + k + k_first, n0 + n, wide)
            at += B_ROWS * N

    @inlined
    def load_tiles(a, b, m0, n0, k0, a_stage, b_stage, wide):
        """Global memory to registers; what lies outside A or B counts as zero."""
        K, N = b.shape
        thread = uint32(cuda.threadIdx.x)
        for i in range(0, A_STAGE, VECTOR):
            m, k = m0 + i // VECTOR * A_ROWS + thread // A_COLUMNS, k0 + thread % A_COLUMNS * VECTOR
            if full:
                load4(a_stage, i, a, m * K + k)
            else:
                load4_guarded(a_stage, i, a, m, k, wide)
        for i in range(0, B_STAGE, VECTOR):
            k, n = k0 + i // VECTOR * B_ROWS + thread // B_COLUMNS, n0 + thread % B_COLUMNS * VECTOR
            if full:
                load4(b_stage, i, b, k * N + n)
            else:
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
    def multiply_k(a_at, b_at, a_tile, b_tile, a_frag, b_frag, acc):
        """The products of one k; `a_at` and `b_at` are where in the tiles this thread's values lie."""
        for i in range(0, THREAD_M, VECTOR):
            load4(a_frag, i, a_tile, a_at + i * LANES_M)
        for j in range(0, THREAD_N, VECTOR):
            load4(b_frag, j, b_tile, b_at + j * LANES_N)
        for i in range(THREAD_M):
            for j in range(THREAD_N):
                acc[i * THREAD_N + j] += a_frag[i] * b_frag[j]

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
        a_tile = shared_array(A_BOTH)
        b_tile = shared_array(B_BOTH)
        a_stage = cuda.local.array(A_STAGE, float32)
        b_stage = cuda.local.array(B_STAGE, float32)
        a_frag = cuda.local.array(THREAD_M, float32)
        b_frag = cuda.local.array(THREAD_N, float32)
        acc = cuda.local.array(ACC, float32)
        M, N = c.shape
        K = a.shape[1]

        # locate: the block; blocks walk down GROUP_M rows before they move one column to the right
        blocks_m, blocks_n = (M + BLOCK_M - 1) // BLOCK_M, (N + BLOCK_N - 1) // BLOCK_N
        group, place = cuda.blockIdx.x // (GROUP_M * blocks_n), cuda.blockIdx.x % (GROUP_M * blocks_n)
        rows = min(blocks_m - group * GROUP_M, GROUP_M)
        m0 = (group * GROUP_M + place % rows) * BLOCK_M
        n0 = place // rows * BLOCK_N

        # locate: the thread. Lanes l and l^1 read the same piece of b_tile, l and l^2 the same piece of a_tile: such
        # pairs let a 128-bit shared load serve half a warp at a time, otherwise it serves a quarter
        warp, lane = uint32(cuda.threadIdx.x) // 32, uint32(cuda.threadIdx.x) % 32
        thread_m = warp // WARPS_N * WARP_M + (lane // 16 * 2 + lane % 2) * VECTOR
        thread_n = warp % WARPS_N * WARP_N + lane // 2 % LANES_N * VECTOR

        for i in range(ACC):
            acc[i] = float32(0.0)

        # stage: the first pair of tiles
        if ASYNC:
            copy_tiles(a, b, m0, n0, 0, a_tile, 0, b_tile, 0, wide)
            wait_async()
        else:
            load_tiles(a, b, m0, n0, 0, a_stage, b_stage, wide)
            store_tiles(a_stage, b_stage, a_tile, 0, b_tile, 0)
        cuda.syncthreads()

        a_start, b_start = 0, 0
        for k0 in range(0, K, BLOCK_K):
            # stage: ask for the next pair, which travels while this one is multiplied. After the last comes the first
            # again: with an `if` around them, the compiler would move the loads behind the multiplications
            k_next = k0 + BLOCK_K if k0 + BLOCK_K < K else 0
            a_next, b_next = A_SIZE - a_start, B_SIZE - b_start
            if ASYNC:
                copy_tiles(a, b, m0, n0, k_next, a_tile, a_next, b_tile, b_next, wide)
            else:
                load_tiles(a, b, m0, n0, k_next, a_stage, b_stage, wide)

            # multiply
            for k in unrolled(BLOCK_K):
                a_at, b_at = a_start + k * A_STRIDE + thread_m, b_start + k * B_STRIDE + thread_n
                multiply_k(a_at, b_at, a_tile, b_tile, a_frag, b_frag, acc)

            # stage: the next pair is complete once all threads have it in shared memory
            if ASYNC:
                wait_async()
            else:
                store_tiles(a_stage, b_stage, a_tile, a_next, b_tile, b_next)
            cuda.syncthreads()
            a_start, b_start = a_next, b_next

        # store
        for i in unrolled(THREAD_M):  # int64(i), as for a literal Numba would compile store_row once more
            m = m0 + thread_m + i // VECTOR * VECTOR * LANES_M + i % VECTOR
            store_row(c, m, n0, thread_n, acc, int64(i), wide)

    return gemm_tuned, THREADS


def launch(a, b, c, **tile):
    M, N = c.shape
    K = a.shape[1]
    tile = {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "BLOCK_K": BLOCK_K, "ASYNC": ASYNC, **tile}
    tile["ASYNC"] = tile["ASYNC"] and async_supported()
    blocks_m, blocks_n = -(-M // tile["BLOCK_M"]), -(-N // tile["BLOCK_N"])
    wide = aligned(a, b, c)
    full = wide and M % tile["BLOCK_M"] == 0 and N % tile["BLOCK_N"] == 0 and K % tile["BLOCK_K"] == 0
    kernel, THREADS = specialise(full, **tile)
    kernel[blocks_m * blocks_n, THREADS](a, b, c, wide)
