"""Exercise 07.14, tune: at most 500 blocks, and 60% of the floor.

A stage is a tile of A and one of B; a warpgroup multiplies 64 rows. 4096 x 4096 takes 4,096 blocks, and each brings
its tiles from L2, 63 bytes for each thousand multiply-adds. Larger tiles bring more products for each byte, more
stages hide longer loads. A block may have 232,448 bytes of shared memory, a thread no stack. A block's threads have
equally many registers, in steps of 8. Warps are dealt to four schedulers with 16,384 registers each, so 13 warps have
as few as 16 would. K and N are multiples of 8: what the copy engine can take rows of.
With a GPU: at least 60 percent of the floor's rate on hgemm-4096.
Grade: python -m common grade 07.14
"""

from numba import cuda, float32, uint32, uint64

from lessons.toolkit import hopper
from lessons.toolkit.grid import jit
from lessons.toolkit.maps import Maps
from lessons.toolkit.memory import aligned
from lessons.toolkit.unroll import unroll, unrolled

REQUIRES = "9.0a"
BLOCK_M, BLOCK_N, BLOCK_K = 64, 64, 64
STAGES = 2
CONSUMERS = BLOCK_M // 64
ASKS = CONSUMERS * 128  # the thread that asks for tiles
THREADS = ASKS + 32
A_SIZE, STAGE = BLOCK_M * BLOCK_K, (BLOCK_M + BLOCK_N) * BLOCK_K
STAGE_BYTES, SHARED_BYTES = 2 * STAGE, 2 * STAGES * STAGE
PARTS, PART = BLOCK_N // 64, 32  # panels of 64 columns, and the sums of one
PANEL = BLOCK_K * 64
ACC = PARTS * PART
MAPS = Maps()


@jit(THREADS)
@unroll
def hgemm_larger_pipeline(a_map, b_map, c, K, paired):
    tiles = hopper.half_tiles()
    filled, emptied = hopper.barrier_array(STAGES), hopper.barrier_array(STAGES)
    acc = cuda.local.array(ACC, float32)
    thread = uint32(cuda.threadIdx.x)

    # locate
    blocks_n = (c.shape[1] + BLOCK_N - 1) // BLOCK_N
    m0, n0 = cuda.blockIdx.x // blocks_n * BLOCK_M, cuda.blockIdx.x % blocks_n * BLOCK_N
    if thread == 0:
        hopper.open_stages(filled, emptied, STAGES, CONSUMERS)
        hopper.publish_barriers()
    cuda.syncthreads()

    stage, parity = uint32(0), uint32(0)
    if thread == ASKS:
        # stage
        for k0 in range(0, K, BLOCK_K):
            hopper.barrier_wait(emptied, stage, parity ^ uint32(1))
            hopper.barrier_expect(filled, stage, STAGE_BYTES)
            hopper.tma_load2(tiles, stage * uint32(STAGE), a_map, filled, stage, m0, k0)
            for panel in range(PARTS):
                at = stage * uint32(STAGE) + uint32(A_SIZE + panel * PANEL)
                hopper.tma_load2(tiles, at, b_map, filled, stage, k0, n0 + panel * 64)
            stage, parity = hopper.next_stage(stage, parity, STAGES)
    elif thread < ASKS:
        for part in unrolled(PARTS):
            for i in range(PART):
                acc[part * PART + i] = float32(0.0)
        a_at = hopper.descriptor(tiles, thread // uint32(128) * uint32(64 * 64), 0, 1024)
        b_at = hopper.descriptor(tiles, A_SIZE, 8192, 1024)
        for _ in range(0, K, BLOCK_K):
            # multiply
            hopper.barrier_wait(filled, stage, parity)
            moved = uint64(stage * uint32(STAGE_BYTES >> 4))
            hopper.wgmma_fence()
            for k in unrolled(4):
                a, b = a_at + moved + uint64(k * 2), b_at + moved + uint64(k * 128)
                hopper.wgmma_f16_rows(acc, 0, tiles, a, b, BLOCK_N)
            hopper.wgmma_commit()
            hopper.wgmma_wait(0)
            if thread % uint32(128) == 0:
                hopper.barrier_arrive(emptied, stage)
            stage, parity = hopper.next_stage(stage, parity, STAGES)

        # store
        m = m0 + thread // uint32(32) * uint32(16)
        for part in unrolled(PARTS):
            hopper.store_part(c, m, n0 + part * 64, acc, uint32(part * PART), paired)


def launch(a, b, c):
    M, N = c.shape
    a_map, b_map = MAPS.tiled(a, (BLOCK_M, BLOCK_K)), MAPS.tiled(b, (BLOCK_K, 64))
    blocks = -(-M // BLOCK_M) * -(-N // BLOCK_N)
    hgemm_larger_pipeline[blocks, THREADS, 0, SHARED_BYTES](a_map, b_map, c, a.shape[1], aligned(c, to=4))
