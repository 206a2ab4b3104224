"""A small pipeline that exercises complete: one thread asks for tiles, each 64 rows of them have a warpgroup."""

from numba import cuda, float32, int32, int64, uint32

from lessons.toolkit import hopper
from lessons.toolkit.grid import jit
from lessons.toolkit.maps import Maps
from lessons.toolkit.memory import aligned
from lessons.toolkit.pasted import pasted
from lessons.toolkit.unroll import unroll, unrolled

MAPS = Maps()
BLOCK_K, PANEL = 64, 64 * 64  # k of a stage; values of 64 columns of B's tile


def asking(BLOCK_M, BLOCK_N, STAGES, STAGE_BYTES):
    """Build the thread that asks for the tiles of all of its block's tiles of C, STAGE_BYTES at a time."""

    @pasted
    def produce(tiles, filled, emptied, a_map, b_map, tiles_m, tiles_n, K):
        stage, parity = uint32(0), uint32(0)
        for tile in range(cuda.blockIdx.x, tiles_m * tiles_n, cuda.gridDim.x):
            m0, n0 = tile // tiles_n * BLOCK_M, tile % tiles_n * BLOCK_N
            for k0 in range(0, K, BLOCK_K):
                start = stage * (BLOCK_M + BLOCK_N) * BLOCK_K
                hopper.barrier_wait(emptied, stage, parity ^ 1)
                hopper.barrier_expect(filled, stage, STAGE_BYTES)
                hopper.tma_load2(tiles, start, a_map, filled, stage, m0, k0)
                for panel in range(BLOCK_N // 64):
                    at = start + BLOCK_M * BLOCK_K + panel * PANEL
                    hopper.tma_load2(tiles, at, b_map, filled, stage, k0, n0 + panel * 64)
                stage, parity = hopper.next_stage(stage, parity, STAGES)

    return produce


def specialise(BLOCK_M, BLOCK_N, STAGES, produce):
    """The kernel with this thread that asks, the threads of a block, and its bytes of shared memory."""
    STAGE = (BLOCK_M + BLOCK_N) * BLOCK_K
    CONSUMERS, PARTS, PART = BLOCK_M // 64, BLOCK_N // 64, 32  # warpgroups; 64 columns, and a thread's sums of them
    ASKS, ACC = CONSUMERS * 128, PARTS * PART

    @jit(ASKS + 32)
    @unroll
    def hgemm_one_producer(a_map, b_map, c, K, paired):
        tiles = hopper.half_tiles()
        filled, emptied = hopper.barrier_array(STAGES), hopper.barrier_array(STAGES)
        acc = cuda.local.array(ACC, float32)
        thread = uint32(cuda.threadIdx.x)

        # locate
        tiles_m, tiles_n = (c.shape[0] + BLOCK_M - 1) // BLOCK_M, (c.shape[1] + BLOCK_N - 1) // BLOCK_N
        steps = int32((K + BLOCK_K - 1) // BLOCK_K)
        if thread == 0:
            hopper.open_stages(filled, emptied, STAGES, CONSUMERS)
            hopper.publish_barriers()
        cuda.syncthreads()

        if thread == ASKS:
            # stage
            produce(tiles, filled, emptied, a_map, b_map, tiles_m, tiles_n, K)
        elif thread < ASKS:
            stage, parity = uint32(0), uint32(0)
            a_at = hopper.descriptor(tiles, thread // 128 * PANEL, 0, 1024)
            b_at = hopper.descriptor(tiles, BLOCK_M * BLOCK_K, 2 * PANEL, 1024)
            for tile in range(int32(cuda.blockIdx.x), int32(tiles_m * tiles_n), int32(cuda.gridDim.x)):
                for part in unrolled(PARTS):
                    for i in range(PART):
                        acc[part * PART + i] = float32(0.0)
                for _ in range(steps):
                    # multiply
                    hopper.barrier_wait(filled, stage, parity)
                    moved = stage * (2 * STAGE >> 4)
                    hopper.wgmma_fence()
                    for k in unrolled(4):
                        a, b = a_at + moved + k * 2, b_at + moved + k * 128
                        hopper.wgmma_f16_rows(acc, 0, tiles, a, b, BLOCK_N)
                    hopper.wgmma_commit()
                    hopper.wgmma_wait(0)
                    if thread % 128 == 0:
                        hopper.barrier_arrive(emptied, stage)
                    stage, parity = hopper.next_stage(stage, parity, STAGES)

                # store
                m = int64(uint32(tile) // uint32(tiles_n)) * BLOCK_M + thread // 32 * 16
                n0 = int64(uint32(tile) % uint32(tiles_n)) * BLOCK_N
                for part in unrolled(PARTS):
                    hopper.store_part(c, m, n0 + part * 64, acc, uint32(part * PART), paired)

    return hgemm_one_producer, ASKS + 32, 2 * STAGES * STAGE


def launching(BLOCK_M, BLOCK_N, STAGES, produce, most=1 << 30):
    """`launch` of the kernel with this thread that asks, with a block for each tile, but `most` of them."""
    kernel, threads, shared_bytes = specialise(BLOCK_M, BLOCK_N, STAGES, produce)

    def launch(a, b, c):
        M, N = c.shape
        a_map, b_map = MAPS.tiled(a, (BLOCK_M, BLOCK_K)), MAPS.tiled(b, (BLOCK_K, 64))
        blocks = min(most, -(-M // BLOCK_M) * -(-N // BLOCK_N))
        kernel[blocks, threads, 0, shared_bytes](a_map, b_map, c, a.shape[1], aligned(c, to=4))

    return launch
