"""hgemm_register_operand: A comes through registers again, and the matrix unit no longer waits for it.

Previous step: hgemm_tma_stores
New idea: a wgmma that finds A in shared memory fetches it before it multiplies, and the unit waits for part of that.
    It may take A from registers as well: each warp loads its rows by ldmatrix while the unit multiplies what came
    before, to one of two sets, so the loop is written out twice. Now threads read A: a stage is empty when each warp
    has. Where rows are not multiples of 16 bytes, `launch` runs hgemm_pipelined.
Loads per FMA: as in hgemm_tma_stores; A is read from shared memory as often as before, by threads.
Run: python -m lessons.07_hopper hgemm_register_operand
"""

import importlib

from numba import cuda, float32, int32, uint32
from numba.types import float16

from lessons.toolkit import hopper
from lessons.toolkit.grid import jit
from lessons.toolkit.maps import Maps
from lessons.toolkit.memory import aligned
from lessons.toolkit.mma import ldmatrix4
from lessons.toolkit.pasted import pasted
from lessons.toolkit.unroll import inlined, unroll, unrolled

unaligned = importlib.import_module("lessons.06_tensor_cores.hgemm_pipelined")
tma = importlib.import_module("lessons.07_hopper.hgemm_tma")
wgmma = importlib.import_module("lessons.07_hopper.hgemm_wgmma")
stores = importlib.import_module("lessons.07_hopper.hgemm_tma_stores")
produce, leave, locate = stores.produce, stores.leave, stores.locate

REQUIRES = "9.0a"
BLOCK_M, BLOCK_N, BLOCK_K = stores.BLOCK_M, stores.BLOCK_N, stores.BLOCK_K
ROW, BYTES, EIGHT_ROWS, PANEL, A_SIZE = stores.ROW, stores.BYTES, stores.EIGHT_ROWS, stores.PANEL, stores.A_SIZE
STAGES, STAGE, LEAVING, SHARED_BYTES = stores.STAGES, stores.STAGE, stores.LEAVING, stores.SHARED_BYTES
CONSUMERS, THREADS, FEW, MANY = stores.CONSUMERS, stores.THREADS, stores.FEW, stores.MANY
WARP_M, SLAB, SLABS = stores.WARP_M, stores.SLAB, stores.SLABS
PARTS, PART, ACC, MMA_K = stores.PARTS, stores.PART, stores.ACC, wgmma.MMA_K
STAGE_BYTES, K_STEPS, B_STEP = wgmma.STAGE_BYTES, wgmma.K_STEPS, wgmma.B_STEP
MAPS = Maps()
FRAG = WARP_M * BLOCK_K // 32  # values of A that a thread has of a stage
SETS = 2  # of their registers: the unit reads one while the other is loaded


@inlined
def load_fragments(frag, first, tiles, at):
    """The warp's 16 rows of a tile of A to frag[first] on; the lane's row begins at tiles[at], swizzled."""
    for k in range(K_STEPS):
        ldmatrix4(frag, first + 8 * k, tiles, at ^ k * MMA_K)


@pasted
@unroll
def start(acc, frag, s, tiles, stage, step, a_at, b_at):
    """Start a stage's products, A in set s of the registers."""
    load_fragments(frag, s * FRAG, tiles, a_at + stage * STAGE)
    hopper.wgmma_fence()
    moved = stage * (STAGE_BYTES >> 4)
    for k in unrolled(K_STEPS):
        b_k = b_at + moved + k * B_STEP
        hopper.wgmma_f16_rows_registers(acc, 0, frag, s * FRAG + 8 * k, tiles, b_k, BLOCK_N)


def consuming(start, STAGES, SETS):
    """Build a consumer's loop over the `steps` stages of a tile; it returns the next stage, and its parity."""

    @pasted
    @unroll
    def consume(acc, frag, tiles, filled, emptied, stage, parity, steps, a_at, b_at, lane):
        before = stage
        for begin in range(0, steps, SETS):
            for s in unrolled(SETS):
                if SETS == 1 or begin + s < steps:
                    hopper.barrier_wait(filled, stage, parity)

                    # multiply: started here; the one before it has ended, and its stage may be filled again
                    start(acc, frag, s, tiles, stage, begin + s, a_at, b_at)
                    hopper.wgmma_commit()
                    hopper.wgmma_wait(1)
                    cuda.syncwarp()  # threads have read A: a stage is empty when every warp says so
                    if begin + s > 0 and lane == 0:
                        hopper.barrier_arrive(emptied, before)
                    before = stage
                    stage, parity = hopper.next_stage(stage, parity, STAGES)
        hopper.wgmma_wait(0)
        cuda.syncwarp()
        if lane == 0:
            hopper.barrier_arrive(emptied, before)
        return stage, parity

    return consume


consume = consuming(start, STAGES, SETS)


@jit(THREADS)
@unroll
def hgemm_register_operand(a_map, b_map, c_map, M, N, K):
    tiles = hopper.half_tiles()  # dynamic shared memory: a launch may ask for more than 48 KiB of it
    filled, emptied = hopper.barrier_array(STAGES), hopper.barrier_array(STAGES)
    acc = cuda.local.array(ACC, float32)
    frag = cuda.local.array(SETS * FRAG, float16)
    blocks_m, blocks_n = uint32((M + BLOCK_M - 1) // BLOCK_M), uint32((N + BLOCK_N - 1) // BLOCK_N)
    turns = cuda.blockIdx.x, blocks_m * blocks_n, cuda.gridDim.x  # the block's first tile, where they end, a step
    steps = int32((K + BLOCK_K - 1) // BLOCK_K)
    thread = uint32(cuda.threadIdx.x)
    warpgroup = thread // 128
    if thread == 0:
        hopper.open_stages(filled, emptied, STAGES, CONSUMERS * 4)
        hopper.publish_barriers()
    cuda.syncthreads()

    if warpgroup == CONSUMERS:
        # stage: one thread, whenever a stage is empty
        hopper.give_registers(FEW)
        if thread == CONSUMERS * 128:
            produce(tiles, filled, emptied, a_map, b_map, turns, blocks_m, blocks_n, steps)
    else:
        hopper.take_registers(MANY)
        # locate: where in the tile of A the lane's row lies, the first tile of B, and where the warp's sums leave
        warp, lane = thread // 32, thread % 32
        row, right = warp * WARP_M + lane % 16, lane // 16
        a_at = row * ROW + (right ^ row % 8) * 8
        b_at = hopper.descriptor(tiles, A_SIZE, BYTES * PANEL, EIGHT_ROWS)
        own, stage, parity = LEAVING + warp * SLABS * SLAB, uint32(0), uint32(0)
        for tile in range(int32(turns[0]), int32(turns[1]), int32(turns[2])):
            m0, n0 = locate(uint32(tile), blocks_m, blocks_n)
            for part in unrolled(PARTS):
                for j in range(PART):
                    acc[part * PART + j] = float32(0.0)
            stage, parity = consume(acc, frag, tiles, filled, emptied, stage, parity, steps, a_at, b_at, lane)

            # store
            leave(c_map, m0, warp * WARP_M, n0, tiles, own, acc, 0, lane)
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
