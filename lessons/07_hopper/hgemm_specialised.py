"""hgemm_specialised: one warp asks for tiles, two warpgroups multiply, and blocks stay for tile after tile.

Previous step: hgemm_tma
New idea: warps get different jobs. A *producer* keeps the stages full, two *consumers* keep the matrix unit busy, and
    two barriers for each stage, filled and emptied, are all that they say to each other. `setmaxnreg` moves registers
    from the producer to the consumers. A block works on tile after tile, and the next tile's pairs travel while this
    one's sums are stored. Where rows are not multiples of 16 bytes, `launch` runs hgemm_pipelined.
Loads per FMA: as in hgemm_tma.
Run: python -m lessons.07_hopper hgemm_specialised
"""

import importlib

from numba import cuda, float32, int32, int64, uint32

from lessons.toolkit import hopper
from lessons.toolkit.grid import jit
from lessons.toolkit.maps import Maps
from lessons.toolkit.memory import aligned
from lessons.toolkit.pasted import pasted
from lessons.toolkit.unroll import unroll, unrolled

unaligned = importlib.import_module("lessons.06_tensor_cores.hgemm_pipelined")
tma = importlib.import_module("lessons.07_hopper.hgemm_tma")

REQUIRES = "9.0a"
BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M = tma.BLOCK_M, tma.BLOCK_N, tma.BLOCK_K, tma.GROUP_M
MMA_M, ROW, BYTES, EIGHT_ROWS, PANEL, PARTS = tma.MMA_M, tma.ROW, tma.BYTES, tma.EIGHT_ROWS, tma.PANEL, tma.PARTS
A_SIZE, STAGES, STAGE, PART, ACC = tma.A_SIZE, tma.STAGES, tma.STAGE, tma.PART, tma.ACC
STAGE_BYTES, SHARED_BYTES = tma.STAGE_BYTES, tma.SHARED_BYTES
FEW, MANY = 40, 232  # registers of a producer's thread and of a consumer's
CONSUMERS = BLOCK_M // MMA_M  # warpgroups
THREADS = (1 + CONSUMERS) * 128
MAPS = Maps()
locate = hopper.locating(GROUP_M, BLOCK_M, BLOCK_N)


def producing(load_tiles, locate, STAGES, STEP):
    """Build a producer's loop over the tiles of its block, STEP along k at a time."""

    @pasted
    def produce(tiles, filled, emptied, a_map, b_map, turns, blocks_m, blocks_n, steps):
        stage, parity = uint32(0), uint32(0)
        for tile in range(int32(turns[0]), int32(turns[1]), int32(turns[2])):
            m0, n0 = locate(uint32(tile), blocks_m, blocks_n)
            for step in range(steps):
                hopper.barrier_wait(emptied, stage, parity ^ 1)  # the first STAGES waits pass at once
                load_tiles(tiles, filled, stage, a_map, b_map, m0, n0, step * STEP)
                stage, parity = hopper.next_stage(stage, parity, STAGES)

    return produce


def consuming(multiply, STAGES, STAGE_BYTES):
    """Build a consumer's loop over the `steps` stages of a tile of C; it returns the next stage, and its parity."""

    @pasted
    def consume(acc, tiles, filled, emptied, stage, parity, steps, a_at, b_at, leads):
        before = stage
        for step in range(steps):
            hopper.barrier_wait(filled, stage, parity)

            # multiply: started here; the one before it has ended, and its stage may be filled again
            moved = stage * (STAGE_BYTES >> 4)
            multiply(acc, tiles, a_at, b_at, moved)
            hopper.wgmma_wait(1)
            if leads and step > 0:
                hopper.barrier_arrive(emptied, before)
            before = stage
            stage, parity = hopper.next_stage(stage, parity, STAGES)
        hopper.wgmma_wait(0)
        if leads:
            hopper.barrier_arrive(emptied, before)
        return stage, parity

    return consume


produce = producing(tma.load_tiles, locate, STAGES, BLOCK_K)
consume = consuming(tma.multiply, STAGES, STAGE_BYTES)


@jit(THREADS)
@unroll
def hgemm_specialised(a_map, b_map, c, K, paired):
    tiles = hopper.half_tiles()  # dynamic shared memory: a launch may ask for more than 48 KiB of it
    filled, emptied = hopper.barrier_array(STAGES), hopper.barrier_array(STAGES)
    acc = cuda.local.array(ACC, float32)
    M, N = c.shape
    blocks_m, blocks_n = uint32((M + BLOCK_M - 1) // BLOCK_M), uint32((N + BLOCK_N - 1) // BLOCK_N)
    turns = cuda.blockIdx.x, blocks_m * blocks_n, cuda.gridDim.x  # the block's first tile, where they end, a step
    steps = int32((K + BLOCK_K - 1) // BLOCK_K)
    thread = uint32(cuda.threadIdx.x)
    warpgroup = thread // 128
    if thread == 0:
        hopper.open_stages(filled, emptied, STAGES, CONSUMERS)
        hopper.publish_barriers()
    cuda.syncthreads()

    if warpgroup == CONSUMERS:
        # stage: one thread, whenever a stage is empty
        hopper.give_registers(FEW)
        if thread == CONSUMERS * 128:
            produce(tiles, filled, emptied, a_map, b_map, turns, blocks_m, blocks_n, steps)
    else:
        hopper.take_registers(MANY)
        # locate: the warpgroup's 64 rows of the first tile of A, and the first tile of B
        a_at = hopper.descriptor(tiles, warpgroup * MMA_M * ROW, 0, EIGHT_ROWS)
        b_at = hopper.descriptor(tiles, A_SIZE, BYTES * PANEL, EIGHT_ROWS)
        leads, stage, parity = thread % 128 == 0, uint32(0), uint32(0)
        for tile in range(int32(turns[0]), int32(turns[1]), int32(turns[2])):
            m0, n0 = locate(uint32(tile), blocks_m, blocks_n)
            for part in unrolled(PARTS):
                for j in range(PART):
                    acc[part * PART + j] = float32(0.0)
            stage, parity = consume(acc, tiles, filled, emptied, stage, parity, steps, a_at, b_at, leads)

            # store
            m, n = int64(m0 + thread // 32 * 16), int64(n0)
            for part in unrolled(PARTS):
                hopper.store_part(c, m, n + part * 64, acc, uint32(part * PART), paired)


def launch(a, b, c):
    if not aligned(a, b):
        return unaligned.launch(a, b, c)
    M, N = c.shape
    a_map, b_map = MAPS.tiled(a, (BLOCK_M, ROW)), MAPS.tiled(b, (BLOCK_K, ROW))
    blocks = hopper.persistent(-(-M // BLOCK_M) * -(-N // BLOCK_N))
    hgemm_specialised[blocks, THREADS, 0, SHARED_BYTES](a_map, b_map, c, a.shape[1], aligned(c, to=4))
