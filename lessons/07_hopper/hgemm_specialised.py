"""hgemm_specialised: one warp asks for tiles, two warpgroups multiply, and blocks stay for tile after tile.

Previous step: hgemm_tma
New idea: warps get different jobs. A *producer* keeps the stages full, two *consumers* keep the matrix unit busy, and
    two barriers for each stage are all that they say to each other: filled, and emptied. No barrier holds the whole
    block, so each multiplication starts before the last one has ended. `setmaxnreg` moves registers from the
    producer, which needs few, to the consumers, whose sums need many. A block works on tile after tile, and the next
    tile's pairs travel while this one's sums are stored.
    Where rows are not multiples of 16 bytes, `launch` runs hgemm_pipelined of lesson 06.
Loads per FMA: as in hgemm_tma.
Run: python -m lessons.07_hopper hgemm_specialised
"""

import importlib

from numba import cuda, float32, int32, int64, uint32, uint64

from lessons.toolkit import hopper
from lessons.toolkit.grid import jit
from lessons.toolkit.maps import Maps
from lessons.toolkit.memory import aligned
from lessons.toolkit.unroll import unroll, unrolled

unaligned = importlib.import_module("lessons.06_tensor_cores.hgemm_pipelined")
tma = importlib.import_module("lessons.07_hopper.hgemm_tma")
following, load_tiles = tma.following, tma.load_tiles

REQUIRES = "9.0a"
BLOCK_M, BLOCK_N, BLOCK_K = 128, 256, 64
STAGES = 4  # pairs of tiles in shared memory
GROUP_M = 16  # rows of tiles that are computed together and share columns of B in L2
FEW, MANY = 40, 232  # registers of a producer's thread and of a consumer's
TUNABLES = {"MMA_N": (128, 256), "STAGES": (2, 3, 4), "GROUP_M": (4, 8, 16)}

MMA_M, MMA_N, MMA_K = 64, 256, 16  # the tile that one instruction multiplies
ROW = 64  # values in a row of shared memory: the 128 bytes that the swizzle takes
MAPS = Maps()
if BLOCK_M != 2 * MMA_M or BLOCK_N % MMA_N or MMA_N % ROW or BLOCK_K != ROW or STAGES < 2:
    raise ValueError(
        f"{BLOCK_M=} must be 128, {BLOCK_N=} of {MMA_N=}, that of 64, {BLOCK_K=} 64, {STAGES=} 2 or more"
    )
CONSUMERS = BLOCK_M // MMA_M  # warpgroups
THREADS = (1 + CONSUMERS) * 128
A_SIZE, STAGE = BLOCK_M * BLOCK_K, (BLOCK_M + BLOCK_N) * BLOCK_K  # values of a tile of A, of a pair
BYTES = 2  # of a value
STAGE_BYTES, SHARED_BYTES = BYTES * STAGE, BYTES * STAGES * STAGE
EIGHT_ROWS = 8 * ROW * BYTES  # what a pattern of the swizzle takes
PANEL = BLOCK_K * ROW  # 64 columns of a tile of B
K_STEPS = BLOCK_K // MMA_K
A_STEP, B_STEP = MMA_K * BYTES >> 4, MMA_K * ROW * BYTES >> 4  # from one k to the next, as descriptors count
N_STEP = MMA_N // ROW * PANEL * BYTES >> 4  # from one instruction's columns to the next one's
PARTS, PART = BLOCK_N // 64, 32  # the sums of 64 columns are 32 for each thread
ACC, MMA_ACC = PARTS * PART, MMA_N // 2  # sums of a thread, and of one instruction
locate = hopper.locating(GROUP_M, BLOCK_M, BLOCK_N)


@jit(THREADS)
@unroll
def hgemm_specialised(a_map, b_map, c, K, paired):
    tiles = hopper.half_tiles()  # dynamic shared memory: a launch may ask for more than 48 KiB of it
    filled, emptied = hopper.barrier_array(STAGES), hopper.barrier_array(STAGES)
    acc = cuda.local.array(ACC, float32)
    M, N = c.shape
    blocks_m, blocks_n = uint32((M + BLOCK_M - 1) // BLOCK_M), uint32((N + BLOCK_N - 1) // BLOCK_N)
    first, end, blocks = cuda.blockIdx.x, blocks_m * blocks_n, cuda.gridDim.x
    steps = int32((K + BLOCK_K - 1) // BLOCK_K)
    thread = uint32(cuda.threadIdx.x)
    warpgroup = thread // uint32(128)
    if thread == 0:
        hopper.open_stages(filled, emptied, STAGES, CONSUMERS)
        hopper.publish_barriers()
    cuda.syncthreads()

    stage, parity = uint32(0), uint32(0)
    if warpgroup == uint32(CONSUMERS):
        # stage: one thread, whenever a stage is empty
        hopper.give_registers(FEW)
        if thread == uint32(CONSUMERS * 128):
            for tile in range(int32(first), int32(end), int32(blocks)):
                m0, n0 = locate(uint32(tile), blocks_m, blocks_n)
                for step in range(steps):
                    hopper.barrier_wait(emptied, stage, parity ^ uint32(1))  # the first STAGES waits pass at once
                    load_tiles(tiles, filled, stage, a_map, b_map, m0, n0, uint32(step) * uint32(BLOCK_K))
                    stage, parity = following(stage, parity, STAGES)
    else:
        hopper.take_registers(MANY)
        # locate: the warpgroup's 64 rows of the first tile of A, and the first tile of B
        a_at = hopper.descriptor(tiles, warpgroup * uint32(MMA_M * ROW), 0, EIGHT_ROWS)
        b_at = hopper.descriptor(tiles, A_SIZE, BYTES * PANEL, EIGHT_ROWS)
        leads = thread % uint32(128) == uint32(0)
        for tile in range(int32(first), int32(end), int32(blocks)):
            m0, n0 = locate(uint32(tile), blocks_m, blocks_n)
            for part in unrolled(PARTS):
                for j in range(PART):
                    acc[part * PART + j] = float32(0.0)
            before = stage
            for step in range(steps):
                hopper.barrier_wait(filled, stage, parity)

                # multiply: started here; the one before it has ended, and its stage may be filled again
                hopper.wgmma_fence()
                moved = uint64(stage * uint32(STAGE_BYTES >> 4))
                for k in unrolled(K_STEPS):
                    a_k = a_at + moved + uint64(k * A_STEP)
                    for j in unrolled(BLOCK_N // MMA_N):
                        b_k = b_at + moved + uint64(k * B_STEP + j * N_STEP)
                        hopper.wgmma_f16_rows(acc, j * MMA_ACC, tiles, a_k, b_k, MMA_N)
                hopper.wgmma_commit()
                hopper.wgmma_wait(1)
                if leads and step > 0:
                    hopper.barrier_arrive(emptied, before)
                before = stage
                stage, parity = following(stage, parity, STAGES)
            hopper.wgmma_wait(0)
            if leads:
                hopper.barrier_arrive(emptied, before)

            # store
            m, n = int64(m0 + thread // uint32(32) * uint32(16)), int64(n0)
            for part in unrolled(PARTS):
                hopper.store_part(c, m, n + part * 64, acc, uint32(part * PART), paired)


def launch(a, b, c):
    if not aligned(a, b):
        return unaligned.launch(a, b, c)
    M, N = c.shape
    a_map, b_map = MAPS.tiled(a, (BLOCK_M, ROW)), MAPS.tiled(b, (BLOCK_K, ROW))
    blocks = hopper.persistent(-(-M // BLOCK_M) * -(-N // BLOCK_N))
    hgemm_specialised[blocks, THREADS, 0, SHARED_BYTES](a_map, b_map, c, a.shape[1], aligned(c, to=4))
