"""gemm_double_buffered_async: the next pair of tiles goes to shared memory without passing through registers.

Variant of: gemm_double_buffered
New idea: from compute capability 8.0 on, a copy from global to shared memory is one instruction, which the thread
    starts and does not wait for (cp.async). It needs no staging registers and no stores. But A is transposed on the
    way, so its copies are of 4 bytes each: four instructions where the step has one 128-bit load and four stores.
Loads per FMA: as gemm_double_buffered.
Run: python -m lessons.04_register_blocking gemm_double_buffered_async
"""

import importlib

from numba import cuda, float32, uint32

from lessons.toolkit.grid import jit, row_slices
from lessons.toolkit.memory import (
    VECTOR,
    aligned,
    copy1_guarded,
    copy4_guarded,
    load4,
    shared_array,
    store4_guarded,
    wait_async,
)
from lessons.toolkit.unroll import inlined

step = importlib.import_module("lessons.04_register_blocking.gemm_double_buffered")
BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N = step.BLOCK_M, step.BLOCK_N, step.BLOCK_K, step.THREAD_M, step.THREAD_N
WARP_M, WARP_N, WARPS_N, LANES_M, LANES_N = step.WARP_M, step.WARP_N, step.WARPS_N, step.LANES_M, step.LANES_N
A_STRIDE, B_STRIDE, A_SIZE, B_SIZE = step.A_STRIDE, step.B_STRIDE, step.A_SIZE, step.B_SIZE
A_BOTH, B_BOTH, B_COLUMNS, B_ROWS, ACC = step.A_BOTH, step.B_BOTH, step.B_COLUMNS, step.B_ROWS, step.ACC
THREADS, BLOCKS_PER_SM = step.THREADS, step.BLOCKS_PER_SM
COPY_K = BLOCK_K  # with 8 k by 4 m per warp, the transposed copies of A meet all banks once
COPY_M = THREADS // COPY_K
if BLOCK_M % COPY_M:
    raise ValueError(f"{BLOCK_M=} must be a multiple of {COPY_M=}")


@inlined
def copy_tiles(a, b, m0, n0, k0, a_tile, a_start, b_tile, b_start, wide):
    """Start the copies from global to shared memory; A is transposed on the way, what lies outside is zero."""
    thread = uint32(cuda.threadIdx.x)
    m, k = thread // COPY_K, thread % COPY_K
    for m_first in range(0, BLOCK_M, COPY_M):
        to = a_start + k * A_STRIDE + m_first + m
        copy1_guarded(a_tile, to, a, m0 + m_first + m, k0 + k)
    k, n = thread // B_COLUMNS, thread % B_COLUMNS * VECTOR
    for k_first in range(0, BLOCK_K, B_ROWS):
        to = b_start + (k_first + k) * B_STRIDE + n
        copy4_guarded(b_tile, to, b, k0 + k_first + k, n0 + n, wide)


@jit(THREADS, BLOCKS_PER_SM)
def gemm_double_buffered_async(a, b, c, wide):
    a_tile = shared_array(A_BOTH)
    b_tile = shared_array(B_BOTH)
    a_frag = cuda.local.array(THREAD_M, float32)
    b_frag = cuda.local.array(THREAD_N, float32)
    acc = cuda.local.array(ACC, float32)
    K = a.shape[1]

    # locate: of each 4 * LANES_M rows (4 * LANES_N columns) of a warp's tile a thread has 4. Lanes l and l^1 read the
    # same piece of b_tile, l and l^2 the same of a_tile: such pairs let a 128-bit shared load serve half a warp
    warp, lane = uint32(cuda.threadIdx.x) // 32, uint32(cuda.threadIdx.x) % 32
    thread_m = warp // WARPS_N * WARP_M + (lane // 16 * 2 + lane % 2) * VECTOR
    thread_n = warp % WARPS_N * WARP_N + lane // 2 % LANES_N * VECTOR
    m0 = cuda.blockIdx.y * BLOCK_M
    n0 = cuda.blockIdx.x * BLOCK_N

    for i in range(ACC):
        acc[i] = float32(0.0)

    # stage: the first pair of tiles
    copy_tiles(a, b, m0, n0, 0, a_tile, 0, b_tile, 0, wide)
    wait_async()
    cuda.syncthreads()

    a_start, b_start = 0, 0
    for k0 in range(0, K, BLOCK_K):
        # stage: ask for the next pair, which travels while this one is multiplied; beyond the last all is zero
        a_next, b_next = A_SIZE - a_start, B_SIZE - b_start
        copy_tiles(a, b, m0, n0, k0 + BLOCK_K, a_tile, a_next, b_tile, b_next, wide)

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

        # stage: the next pair is complete once the copies of all threads have arrived
        wait_async()
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
        gemm_double_buffered_async[grid, THREADS](a[rows], b, c[rows], wide)
