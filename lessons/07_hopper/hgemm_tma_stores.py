"""hgemm_tma_stores: results leave through the copy engine, while the next tile is multiplied.

Previous step: hgemm_specialised
New idea: a lane so far stored pairs of sums by itself. Now a warp writes 16 x 64 of its sums to a *slab* of shared
    memory, and the copy engine copies slabs to C in whole rows, clipped at the edges, while the warp goes on with the
    next tile. Where rows are not multiples of 16 bytes, `launch` runs hgemm_pipelined.
Loads per FMA: as in hgemm_specialised.
Run: python -m lessons.07_hopper hgemm_tma_stores
"""

import importlib

from numba import cuda, float32, int32, uint32

from lessons.toolkit import hopper
from lessons.toolkit.grid import jit
from lessons.toolkit.maps import Maps
from lessons.toolkit.memory import aligned, store2_rounded
from lessons.toolkit.unroll import inlined, unroll, unrolled

unaligned = importlib.import_module("lessons.06_tensor_cores.hgemm_pipelined")
specialised = importlib.import_module("lessons.07_hopper.hgemm_specialised")
produce, consume, locate = specialised.produce, specialised.consume, specialised.locate

REQUIRES = "9.0a"
BLOCK_M, BLOCK_N, BLOCK_K = specialised.BLOCK_M, specialised.BLOCK_N, specialised.BLOCK_K
MMA_M, ROW, BYTES, EIGHT_ROWS = specialised.MMA_M, specialised.ROW, specialised.BYTES, specialised.EIGHT_ROWS
A_SIZE, STAGES, STAGE, PANEL = specialised.A_SIZE, specialised.STAGES, specialised.STAGE, specialised.PANEL
PARTS, PART, ACC = specialised.PARTS, specialised.PART, specialised.ACC
CONSUMERS, THREADS, FEW, MANY = specialised.CONSUMERS, specialised.THREADS, specialised.FEW, specialised.MANY
MAPS = Maps()
WARP_M = 16  # rows of results of a warp
SLAB = WARP_M * ROW  # 64 columns of them, on their way through shared memory
SLABS = 2  # of a warp: one is written while the other one leaves; a divisor of a tile's, so that they take turns
LEAVING = STAGES * STAGE  # where slabs lie
SHARED_BYTES = BYTES * (LEAVING + BLOCK_M // WARP_M * SLABS * SLAB)


@inlined
def leave_part(tiles, at, acc, first):
    """The warp's part of 64 columns, 16 rows, from acc[first] on to tiles[at], swizzled."""
    lane = uint32(cuda.threadIdx.x) % 32
    row, pair = lane // 4, lane % 4 * 2
    for j in range(8):
        place = at + row * 64 + (j ^ row) * 8 + pair
        store2_rounded(tiles, place, acc, first + 4 * j)
        store2_rounded(tiles, place + 8 * 64, acc, first + 4 * j + 2)


def leaving(leave_part, ROW, PARTS, PENDING=SLABS - 1):
    """Build the function by which a warp's sums leave, PARTS boxes; PENDING slabs may be on their way at the next."""
    PART, SLAB = ROW // 2, WARP_M * ROW  # sums of a thread, and values of a slab

    @inlined
    @unroll
    def leave(to_map, m0, row, n0, tiles, own, acc, band, lane):
        """The warp's rows of the consumer's `band` of 64, from (m0 + row, n0) on; its slabs begin at tiles[own]."""
        for part in unrolled(PARTS):
            slab = own + (band * PARTS + part) % SLABS * SLAB
            if lane == 0:
                hopper.tma_wait_read(PENDING)  # what lay here has left
            cuda.syncwarp()
            leave_part(tiles, slab, acc, (band * PARTS + part) * PART)
            hopper.fence_async()
            cuda.syncwarp()
            if lane == 0:
                hopper.tma_store2(to_map, m0 + row + band * MMA_M, n0 + part * ROW, tiles, slab)
                hopper.tma_commit()

    return leave


leave = leaving(leave_part, ROW, PARTS)


@jit(THREADS)
@unroll
def hgemm_tma_stores(a_map, b_map, c_map, M, N, K):
    tiles = hopper.half_tiles()  # dynamic shared memory: a launch may ask for more than 48 KiB of it
    filled, emptied = hopper.barrier_array(STAGES), hopper.barrier_array(STAGES)
    acc = cuda.local.array(ACC, float32)
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
        # locate: the warpgroup's 64 rows of the first tile of A, the first tile of B, where the warp's sums leave
        a_at = hopper.descriptor(tiles, warpgroup * MMA_M * ROW, 0, EIGHT_ROWS)
        b_at = hopper.descriptor(tiles, A_SIZE, BYTES * PANEL, EIGHT_ROWS)
        leads, warp, lane = thread % 128 == 0, thread // 32, thread % 32
        own, stage, parity = LEAVING + warp * SLABS * SLAB, uint32(0), uint32(0)
        for tile in range(int32(turns[0]), int32(turns[1]), int32(turns[2])):
            m0, n0 = locate(uint32(tile), blocks_m, blocks_n)
            for part in unrolled(PARTS):
                for j in range(PART):
                    acc[part * PART + j] = float32(0.0)
            stage, parity = consume(acc, tiles, filled, emptied, stage, parity, steps, a_at, b_at, leads)

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
    hgemm_tma_stores[blocks, THREADS, 0, SHARED_BYTES](a_map, b_map, c_map, M, N, a.shape[1])
