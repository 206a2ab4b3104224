"""hgemm_register_operand: A comes through registers again, and the matrix unit no longer waits for it.

Previous step: hgemm_tma_stores
New idea: a wgmma that finds A in shared memory fetches its 64 x 16 values before it multiplies, and the unit waits
    for part of that. A wgmma may take A from registers as well. Each warp loads its rows by ldmatrix, as in lesson
    06, while the unit multiplies what came before. It reads these registers for as long as it multiplies, so there
    are two sets of them, and the loop is written out twice. Now threads read A: a stage is empty when each warp has.
    Where rows are not multiples of 16 bytes, `launch` runs hgemm_pipelined of lesson 06.
Loads per FMA: as in hgemm_tma_stores; A is read from shared memory as often as before, by threads.
Run: python -m lessons.07_hopper hgemm_register_operand
"""

import importlib

from numba import cuda, float32, int32, uint32, uint64
from numba.types import float16

from lessons.toolkit import hopper
from lessons.toolkit.grid import jit
from lessons.toolkit.maps import Maps
from lessons.toolkit.memory import aligned
from lessons.toolkit.mma import ldmatrix4
from lessons.toolkit.unroll import inlined, unroll, unrolled

unaligned = importlib.import_module("lessons.06_tensor_cores.hgemm_pipelined")
stores = importlib.import_module("lessons.07_hopper.hgemm_tma_stores")
following, load_tiles, leave = stores.following, stores.load_tiles, stores.leave

REQUIRES = "9.0a"
BLOCK_M, BLOCK_N, BLOCK_K = 128, 256, 64
STAGES = 4  # pairs of tiles in shared memory
GROUP_M = 16  # rows of tiles that are computed together and share columns of B in L2
FEW, MANY = 40, 232  # registers of a producer's thread and of a consumer's
TUNABLES = {"STAGES": (2, 3, 4), "GROUP_M": (4, 8, 16)}

MMA_M, MMA_K, ROW, BYTES = stores.MMA_M, stores.MMA_K, stores.ROW, stores.BYTES
MAPS = Maps()
if (BLOCK_M, BLOCK_N, BLOCK_K) != (stores.BLOCK_M, stores.BLOCK_N, stores.BLOCK_K) or STAGES < 2:
    raise ValueError(f"{BLOCK_M=}, {BLOCK_N=}, {BLOCK_K=} must be those of hgemm_tma_stores, {STAGES=} 2 or more")
CONSUMERS, THREADS = stores.CONSUMERS, stores.THREADS
A_SIZE, STAGE, STAGE_BYTES = stores.A_SIZE, stores.STAGE, stores.STAGE_BYTES
WARP_M, SLAB, SLABS, EIGHT_ROWS = stores.WARP_M, stores.SLAB, stores.SLABS, stores.EIGHT_ROWS
PANEL, K_STEPS, B_STEP = stores.PANEL, stores.K_STEPS, stores.B_STEP
PARTS, PART, ACC = stores.PARTS, stores.PART, stores.ACC
LEAVING = STAGES * STAGE  # where slabs lie
SHARED_BYTES = BYTES * (LEAVING + BLOCK_M // WARP_M * SLABS * SLAB)
FRAG = WARP_M * BLOCK_K // 32  # values of A that a thread has of a stage
SETS = 2  # of their registers: the unit reads one while the other is loaded
locate = hopper.locating(GROUP_M, BLOCK_M, BLOCK_N)


@inlined
def load_fragments(frag, first, tiles, at):
    """The warp's 16 rows of a tile of A to frag[first] on; the lane's row begins at tiles[at], swizzled."""
    for k in range(K_STEPS):
        ldmatrix4(frag, first + 8 * k, tiles, at ^ uint32(k * MMA_K))


@jit(THREADS)
@unroll
def hgemm_register_operand(a_map, b_map, c_map, M, N, K):
    tiles = hopper.half_tiles()  # dynamic shared memory: a launch may ask for more than 48 KiB of it
    filled, emptied = hopper.barrier_array(STAGES), hopper.barrier_array(STAGES)
    acc = cuda.local.array(ACC, float32)
    frag = cuda.local.array(SETS * FRAG, float16)
    blocks_m, blocks_n = uint32((M + BLOCK_M - 1) // BLOCK_M), uint32((N + BLOCK_N - 1) // BLOCK_N)
    first, end, blocks = cuda.blockIdx.x, blocks_m * blocks_n, cuda.gridDim.x
    steps = int32((K + BLOCK_K - 1) // BLOCK_K)
    thread = uint32(cuda.threadIdx.x)
    warpgroup = thread // uint32(128)
    if thread == 0:
        hopper.open_stages(filled, emptied, STAGES, CONSUMERS * 4)
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
        # locate: where in the tile of A the lane's row lies, the first tile of B, and where the warp's sums leave
        warp, lane = thread // uint32(32), thread % uint32(32)
        row, right = warp * uint32(WARP_M) + lane % uint32(16), lane // uint32(16)
        a_at = row * uint32(ROW) + (right ^ row % uint32(8)) * uint32(8)
        b_at = hopper.descriptor(tiles, A_SIZE, BYTES * PANEL, EIGHT_ROWS)
        own = uint32(LEAVING) + warp * uint32(SLABS * SLAB)
        for tile in range(int32(first), int32(end), int32(blocks)):
            m0, n0 = locate(uint32(tile), blocks_m, blocks_n)
            for part in unrolled(PARTS):
                for j in range(PART):
                    acc[part * PART + j] = float32(0.0)
            before = stage
            for begin in range(0, steps, SETS):
                for s in unrolled(SETS):
                    if begin + s < steps:
                        hopper.barrier_wait(filled, stage, parity)

                        # multiply: started here; the one before it has ended, and its stage may be filled again
                        load_fragments(frag, s * FRAG, tiles, a_at + stage * uint32(STAGE))
                        hopper.wgmma_fence()
                        moved = uint64(stage * uint32(STAGE_BYTES >> 4))
                        for k in unrolled(K_STEPS):
                            b_k = b_at + moved + uint64(k * B_STEP)
                            hopper.wgmma_f16_rows_registers(acc, 0, frag, s * FRAG + 8 * k, tiles, b_k, BLOCK_N)
                        hopper.wgmma_commit()
                        hopper.wgmma_wait(1)
                        cuda.syncwarp()  # threads have read A: a stage is empty when every warp says so
                        if begin + s > 0 and lane == 0:
                            hopper.barrier_arrive(emptied, before)
                        before = stage
                        stage, parity = following(stage, parity, STAGES)
            hopper.wgmma_wait(0)
            cuda.syncwarp()
            if lane == 0:
                hopper.barrier_arrive(emptied, before)

            # store
            leave(c_map, m0, warp * uint32(WARP_M), n0, tiles, own, acc, 0, lane)
        if lane == 0:
            hopper.tma_wait_read(0)


def launch(a, b, c):
    if not aligned(a, b, c):
        return unaligned.launch(a, b, c)
    M, N = c.shape
    a_map, b_map = MAPS.tiled(a, (BLOCK_M, ROW)), MAPS.tiled(b, (BLOCK_K, ROW))
    c_map = MAPS.tiled(c, (WARP_M, ROW))
    blocks = hopper.persistent(-(-M // BLOCK_M) * -(-N // BLOCK_N))
    hgemm_register_operand[blocks, THREADS, 0, SHARED_BYTES](a_map, b_map, c_map, M, N, a.shape[1])
