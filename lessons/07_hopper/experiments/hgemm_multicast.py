"""hgemm_multicast: two blocks share what they both read.

Variant of: hgemm_tma_stores
New idea: blocks run in pairs, a *cluster*, one below the other in C. Both need the same tile of B: each asks for half
    of it, for both (multicast, helpers/pairs.py). L2 sends a third less. It gained nothing: the step did not wait
    for L2.
    Where rows are not multiples of 16 bytes, `launch` runs hgemm_pipelined of lesson 06.
Loads per FMA: (128 + 128) / (128 * 256) values from L2 in place of (128 + 256) / (128 * 256).
Run: python -m lessons.07_hopper hgemm_multicast
"""

import importlib

from numba import cuda, float32, int32, uint32, uint64

from lessons.toolkit import hopper
from lessons.toolkit.grid import jit
from lessons.toolkit.maps import Maps
from lessons.toolkit.memory import aligned
from lessons.toolkit.unroll import unroll, unrolled

stores = importlib.import_module("lessons.07_hopper.hgemm_tma_stores")
pairs = importlib.import_module("lessons.07_hopper.helpers.pairs")
following, leave = stores.following, stores.leave

REQUIRES = "9.0a"
BLOCK_M, BLOCK_N, BLOCK_K, MMA_M = stores.BLOCK_M, stores.BLOCK_N, stores.BLOCK_K, stores.MMA_M
STAGES, CONSUMERS, THREADS = stores.STAGES, stores.CONSUMERS, stores.THREADS
GROUP_M = 8  # rows of pairs of tiles that are computed together and share columns of B in L2
FEW, MANY = stores.FEW, stores.MANY
TUNABLES = {"GROUP_M": (2, 4, 8)}

MAPS = Maps()
ROW, BYTES, A_SIZE, STAGE_BYTES = stores.ROW, stores.BYTES, stores.A_SIZE, stores.STAGE_BYTES
WARP_M, SLAB, SLABS, LEAVING = stores.WARP_M, stores.SLAB, stores.SLABS, stores.LEAVING
SHARED_BYTES, EIGHT_ROWS, PANEL = stores.SHARED_BYTES, stores.EIGHT_ROWS, stores.PANEL
K_STEPS, A_STEP, B_STEP, PARTS, PART = stores.K_STEPS, stores.A_STEP, stores.B_STEP, stores.PARTS, stores.PART
ACC = stores.ACC
CLUSTER = pairs.CLUSTER  # blocks that share tiles of B
locate = pairs.locating(GROUP_M, BLOCK_M, BLOCK_N)
load_tiles = pairs.loading(BLOCK_M, BLOCK_N, BLOCK_K, ROW)


@jit(THREADS, cluster=CLUSTER)
@unroll
def hgemm_multicast(a_map, b_map, c_map, M, N, K):
    tiles = hopper.half_tiles()  # dynamic shared memory: a launch may ask for more than 48 KiB of it
    filled, emptied = hopper.barrier_array(STAGES), hopper.barrier_array(STAGES)
    acc = cuda.local.array(ACC, float32)
    blocks_m = uint32((M + CLUSTER * BLOCK_M - 1) // (CLUSTER * BLOCK_M))
    blocks_n = uint32((N + BLOCK_N - 1) // BLOCK_N)
    first, end, clusters = cuda.blockIdx.x // CLUSTER, blocks_m * blocks_n, cuda.gridDim.x // CLUSTER
    steps = int32((K + BLOCK_K - 1) // BLOCK_K)
    thread, rank = uint32(cuda.threadIdx.x), hopper.cluster_rank()
    warpgroup = thread // uint32(128)
    if thread == 0:
        hopper.open_stages(filled, emptied, STAGES, CLUSTER * CONSUMERS)
        hopper.publish_barriers()
    hopper.cluster_sync()

    stage, parity = uint32(0), uint32(0)
    if warpgroup == uint32(CONSUMERS):
        # stage: one thread, whenever a stage is empty
        hopper.give_registers(FEW)
        if thread == uint32(CONSUMERS * 128):
            for tile in range(int32(first), int32(end), int32(clusters)):
                m0, n0 = locate(uint32(tile), blocks_m, blocks_n, rank)
                for step in range(steps):
                    hopper.barrier_wait(emptied, stage, parity ^ uint32(1))  # the first STAGES waits pass at once
                    load_tiles(tiles, filled, stage, a_map, b_map, m0, n0, uint32(step) * uint32(BLOCK_K), rank)
                    stage, parity = following(stage, parity, STAGES)
    else:
        hopper.take_registers(MANY)
        # locate: the warpgroup's 64 rows of the first tile of A, the first tile of B, and where the warp's sums leave
        a_at = hopper.descriptor(tiles, warpgroup * uint32(MMA_M * ROW), 0, EIGHT_ROWS)
        b_at = hopper.descriptor(tiles, A_SIZE, BYTES * PANEL, EIGHT_ROWS)
        tells = thread % uint32(128)  # which block this thread tells that a stage is empty
        warp, lane = thread // uint32(32), thread % uint32(32)
        own = uint32(LEAVING) + warp * uint32(SLABS * SLAB)
        for tile in range(int32(first), int32(end), int32(clusters)):
            m0, n0 = locate(uint32(tile), blocks_m, blocks_n, rank)
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
                    hopper.wgmma_f16_rows(acc, 0, tiles, a_k, b_at + moved + uint64(k * B_STEP), BLOCK_N)
                hopper.wgmma_commit()
                hopper.wgmma_wait(1)
                if step > 0:
                    pairs.release(emptied, before, tells)
                before = stage
                stage, parity = following(stage, parity, STAGES)
            hopper.wgmma_wait(0)
            pairs.release(emptied, before, tells)

            # store
            leave(c_map, m0, warp * uint32(WARP_M), n0, tiles, own, acc, 0, lane)
        if lane == 0:
            hopper.tma_wait_read(0)
    hopper.cluster_sync()  # a block that ended would take its shared memory with it


def launch(a, b, c):
    if not aligned(a, b, c):
        return stores.launch(a, b, c)
    M, N = c.shape
    a_map, b_map = MAPS.tiled(a, (BLOCK_M, ROW)), MAPS.tiled(b, (BLOCK_K, ROW))
    c_map = MAPS.tiled(c, (WARP_M, ROW))
    blocks = hopper.persistent(-(-M // (CLUSTER * BLOCK_M)) * -(-N // BLOCK_N), CLUSTER)
    hgemm_multicast[blocks, THREADS, 0, SHARED_BYTES](a_map, b_map, c_map, M, N, a.shape[1])
