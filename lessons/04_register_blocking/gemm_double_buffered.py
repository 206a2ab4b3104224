"""gemm_double_buffered: the next pair of tiles travels while this one is multiplied.

Previous step: gemm_warp_tiles
New idea: two pairs of tiles in shared memory. A block asks global memory for the next pair, multiplies this one, and
    only then stores what has arrived, into the other pair's place: nobody waits for memory. One barrier for each pair
    is enough: it says that the next pair is complete, and that nobody reads this one any more.
Loads per FMA: as before; threads wait less for global memory, and at half as many barriers.
Run: python -m lessons.04_register_blocking gemm_double_buffered
"""

from numba import cuda, float32, uint32, uint64

from lessons.toolkit.grid import jit, row_slices
from lessons.toolkit.memory import VECTOR, aligned, load4, load4_guarded, shared_array, store4, store4_guarded
from lessons.toolkit.unroll import inlined

BLOCK_M, BLOCK_N, BLOCK_K = 128, 128, 8
THREAD_M, THREAD_N = 8, 8
LANES_M, LANES_N = 4, 8  # the 32 lanes of a warp, as rows and columns
BLOCKS_PER_SM = 2  # leaves each thread at most 65536 / THREADS / BLOCKS_PER_SM registers
TUNABLES = {
    "BLOCK_M": (64, 128), "BLOCK_N": (64, 128), "BLOCK_K": (8, 16), "THREAD_M": (4, 8), "THREAD_N": (4, 8),
    "BLOCKS_PER_SM": (1, 2),
}  # fmt: skip

WARP_M, WARP_N = LANES_M * THREAD_M, LANES_N * THREAD_N
if BLOCK_M % WARP_M or BLOCK_N % WARP_N or THREAD_M % VECTOR or THREAD_N % VECTOR:
    raise ValueError(f"{BLOCK_M=} {BLOCK_N=} must be multiples of {WARP_M=} {WARP_N=}, {THREAD_M=} {THREAD_N=} of 4")
WARPS_N = BLOCK_N // WARP_N
THREADS = BLOCK_M // WARP_M * WARPS_N * 32
A_COLUMNS, B_COLUMNS = BLOCK_K // VECTOR, BLOCK_N // VECTOR  # 128-bit pieces in a row of the tile
A_ROWS, B_ROWS = THREADS // A_COLUMNS, THREADS // B_COLUMNS  # rows staged at a time
if THREADS > 1024 or BLOCK_M % A_ROWS or BLOCK_K % B_ROWS:
    raise ValueError(f"{BLOCK_M=} {BLOCK_N=} {BLOCK_K=} do not divide among {THREADS=}")
PAD = VECTOR  # keeps the transposed stores apart, and each row on a 16-byte boundary
A_STRIDE, B_STRIDE = BLOCK_M + PAD, BLOCK_N
A_SIZE, B_SIZE = BLOCK_K * A_STRIDE, BLOCK_K * B_STRIDE
A_BOTH, B_BOTH = 2 * A_SIZE, 2 * B_SIZE
SHARED_BYTES = 49152  # what a block may have
if 4 * (A_BOTH + B_BOTH) > SHARED_BYTES:
    raise ValueError(f"{BLOCK_K=}: the tiles take {4 * (A_BOTH + B_BOTH)} bytes, a block has {SHARED_BYTES}")
A_STAGE, B_STAGE = BLOCK_M // A_ROWS * VECTOR, BLOCK_K // B_ROWS * VECTOR  # values that a thread stages
ACC = THREAD_M * THREAD_N


@inlined
def load_tiles(a, b, m0, n0, k0, a_stage, b_stage, wide):
    """Global memory to registers, A_ROWS or B_ROWS rows at a time; what lies outside A or B counts as zero."""
    thread = uint32(cuda.threadIdx.x)
    for i in range(0, A_STAGE, VECTOR):
        m, k = m0 + i // VECTOR * A_ROWS + thread // A_COLUMNS, k0 + thread % A_COLUMNS * VECTOR
        load4_guarded(a_stage, i, a, m, k, wide)
    for i in range(0, B_STAGE, VECTOR):
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


@jit(THREADS, BLOCKS_PER_SM)
def gemm_double_buffered(a, b, c, wide):
    a_tile, b_tile = shared_array(A_BOTH), shared_array(B_BOTH)
    a_stage, b_stage = cuda.local.array(A_STAGE, float32), cuda.local.array(B_STAGE, float32)
    a_frag, b_frag = cuda.local.array(THREAD_M, float32), cuda.local.array(THREAD_N, float32)
    acc = cuda.local.array(ACC, float32)
    K = a.shape[1]

    # locate: of each 4 * LANES_M rows (4 * LANES_N columns) of a warp's tile a thread has 4. Lanes l and l^1 read
    # the same piece of b_tile, l and l^2 of a_tile: such pairs let a 128-bit shared load serve half a warp
    thread = uint32(cuda.threadIdx.x)
    warp, lane = thread // 32, thread % 32
    thread_m = warp // WARPS_N * WARP_M + (lane // 16 * 2 + lane % 2) * VECTOR
    thread_n = warp % WARPS_N * WARP_N + lane // 2 % LANES_N * VECTOR
    m0 = cuda.blockIdx.y * BLOCK_M
    n0 = cuda.blockIdx.x * BLOCK_N

    for i in range(ACC):
        acc[i] = float32(0.0)

    # stage: the first pair of tiles
    load_tiles(a, b, m0, n0, 0, a_stage, b_stage, wide)
    store_tiles(a_stage, b_stage, a_tile, 0, b_tile, 0)
    cuda.syncthreads()

    a_start, b_start = 0, 0
    for k0 in range(0, K, BLOCK_K):
        # stage: ask for the next pair, which travels while this one is multiplied. After the last comes the first
        # again: with an `if` around them, the compiler would move the loads behind the multiplications
        k_next = k0 + BLOCK_K if k0 + BLOCK_K < K else 0
        a_next, b_next = A_SIZE - a_start, B_SIZE - b_start
        load_tiles(a, b, m0, n0, k_next, a_stage, b_stage, wide)

        # multiply: a_at and b_at are where in row k of the tiles this thread's values lie
        a_at, b_at = a_start + thread_m, b_start + thread_n
        for _ in range(BLOCK_K):
            for i in range(0, THREAD_M, VECTOR):
                load4(a_frag, i, a_tile, a_at + i * LANES_M)
            for j in range(0, THREAD_N, VECTOR):
                load4(b_frag, j, b_tile, b_at + j * LANES_N)
            for i in range(THREAD_M):
                for j in range(THREAD_N):
                    acc[i * THREAD_N + j] += a_frag[i] * b_frag[j]
            a_at += A_STRIDE
            b_at += B_STRIDE

        # stage: the next pair is complete once all threads have stored it
        store_tiles(a_stage, b_stage, a_tile, a_next, b_tile, b_next)
        cuda.syncthreads()
        a_start, b_start = a_next, b_next

    # store
    for i in range(THREAD_M):
        m = m0 + thread_m + i // VECTOR * VECTOR * LANES_M + i % VECTOR
        for j in range(0, THREAD_N, VECTOR):
            n = n0 + thread_n + j * LANES_N
            store4_guarded(c, m, n, acc, i * THREAD_N + j, wide)


def launch(a, b, c):
    M, N = c.shape
    wide = aligned(a, b, c)
    for rows, grid in row_slices(M, N, BLOCK_M, BLOCK_N):
        gemm_double_buffered[grid, THREADS](a[rows], b, c[rows], wide)
