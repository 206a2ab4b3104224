"""Exercise 07.5, find the bug: a stage that is released too early.

One thread asks for tiles, four warps multiply. On many runs the results are right. The grader says which copy came
while what might still be reading. Change one line. K and N are multiples of 8.
Grade: python -m common grade 07.5
"""

from numba import cuda, float32

from lessons.toolkit import hopper
from lessons.toolkit.grid import jit
from lessons.toolkit.maps import Maps
from lessons.toolkit.memory import aligned
from lessons.toolkit.unroll import unroll, unrolled

REQUIRES = "9.0a"
BLOCK_M, BLOCK_N, BLOCK_K = 64, 64, 64
STAGES = 2
THREADS = 128 + 32  # four warps multiply, one asks
A_SIZE, STAGE = BLOCK_M * BLOCK_K, (BLOCK_M + BLOCK_N) * BLOCK_K
STAGE_BYTES, SHARED_BYTES = 2 * STAGE, 2 * STAGES * STAGE
ACC = BLOCK_N // 2
MAPS = Maps()


@jit(THREADS)
@unroll
def hgemm_released_too_early(a_map, b_map, c, K, paired):
    tiles = hopper.half_tiles()
    filled, emptied = hopper.barrier_array(STAGES), hopper.barrier_array(STAGES)
    acc = cuda.local.array(ACC, float32)
    thread = cuda.threadIdx.x

    # locate
    blocks_n = (c.shape[1] + BLOCK_N - 1) // BLOCK_N
    m0, n0 = cuda.blockIdx.x // blocks_n * BLOCK_M, cuda.blockIdx.x % blocks_n * BLOCK_N
    if thread == 0:
        for s in range(STAGES):
            hopper.barrier_init(filled, s, 1)
            hopper.barrier_init(emptied, s, 1)
        hopper.publish_barriers()
    cuda.syncthreads()

    stage, parity = 0, 0
    if thread == 128:
        # stage
        for k0 in range(0, K, BLOCK_K):
            hopper.barrier_wait(emptied, stage, parity ^ 1)
            hopper.barrier_expect(filled, stage, STAGE_BYTES)
            hopper.tma_load2(tiles, stage * STAGE, a_map, filled, stage, m0, k0)
            hopper.tma_load2(tiles, stage * STAGE + A_SIZE, b_map, filled, stage, k0, n0)
            stage, parity = hopper.next_stage(stage, parity, STAGES)
    elif thread < 128:
        for i in range(ACC):
            acc[i] = float32(0.0)
        a_at = hopper.descriptor(tiles, 0, 0, 1024)
        b_at = hopper.descriptor(tiles, A_SIZE, 8192, 1024)
        for _ in range(0, K, BLOCK_K):
            # multiply
            hopper.barrier_wait(filled, stage, parity)
            moved = stage * (STAGE_BYTES >> 4)
            hopper.wgmma_fence()
            for k in unrolled(4):
                a, b = a_at + moved + k * 2, b_at + moved + k * 128
                hopper.wgmma_f16_rows(acc, 0, tiles, a, b, BLOCK_N)
            hopper.wgmma_commit()
            hopper.wgmma_wait(1)
            if thread == 0:
                hopper.barrier_arrive(emptied, stage)
            stage, parity = hopper.next_stage(stage, parity, STAGES)
        hopper.wgmma_wait(0)

        # store
        hopper.store_part(c, m0 + thread // 32 * 16, n0, acc, 0, paired)


def launch(a, b, c):
    M, N = c.shape
    a_map, b_map = MAPS.tiled(a, (BLOCK_M, BLOCK_K)), MAPS.tiled(b, (BLOCK_K, BLOCK_N))
    blocks = -(-M // BLOCK_M) * -(-N // BLOCK_N)
    hgemm_released_too_early[blocks, THREADS, 0, SHARED_BYTES](a_map, b_map, c, a.shape[1], aligned(c, to=4))
