"""hgemm_sparse_wgmma: sparse weights on Hopper: the whole pipeline of lesson 07, and both operands in shared memory.

Previous step: hgemm_sparse
Builds on: hgemm_tma_stores
New idea: a sparse `wgmma` multiplies 64 x 32 of the weights, of which half are kept, by 32 x 256, in the time of a
    dense one of half the k. Each lane loads a word for every 64 k that says where kept values belong, two stages
    ahead. Two blocks with different weights share tiles of A (multicast). The product is the transpose of C:
    `stmatrix` transposes sums on their way out. Where rows of A or C are not multiples of 16 bytes, `launch` runs
    hgemm_sparse.
Loads per FMA: (BLOCK_N / 2 + BLOCK_M / 2) / (BLOCK_N * BLOCK_M) = 0.006 values from L2.
Run: python -m lessons.09_fewer_bits hgemm_sparse_wgmma
"""

import importlib

from numba import cuda, float32, int32, uint32, uint64
from numba.types import float16

from lessons.toolkit import hopper
from lessons.toolkit.grid import jit
from lessons.toolkit.maps import Maps
from lessons.toolkit.memory import aligned
from lessons.toolkit.mma import stmatrix4_transposed, to_half
from lessons.toolkit.narrow import narrow
from lessons.toolkit.unroll import inlined, unroll, unrolled

unaligned = importlib.import_module("lessons.09_fewer_bits.hgemm_sparse")
specialised = importlib.import_module("lessons.07_hopper.hgemm_specialised")
pairs = importlib.import_module("lessons.07_hopper.helpers.pairs")

CLUSTER, ALL = pairs.CLUSTER, pairs.ALL  # blocks that share tiles of A

REQUIRES = "9.0a"
ALGORITHM = "2:4"
BLOCK_N, BLOCK_M, BLOCK_K = 128, 256, 64  # columns of B, the left operand's rows; rows of A
STAGES = 5  # pairs of tiles in shared memory
GROUP_N = 4  # pairs of tiles along n that are computed together and share rows of A in L2
CONSUMERS, THREADS, FEW, MANY = specialised.CONSUMERS, specialised.THREADS, specialised.FEW, specialised.MANY
TUNABLES = {"STAGES": (3, 4, 5), "GROUP_N": (2, 4, 8, 16)}

MMA_N, MMA_K = 64, 32  # rows and k of the left operand that one instruction multiplies; its columns are BLOCK_M
KEPT = BLOCK_K // 2  # values of a row of a tile of B
BYTES = 2  # of a value
MAPS = Maps()
if BLOCK_N != 2 * MMA_N or BLOCK_M != 256 or BLOCK_K != 64 or STAGES < 2:
    raise ValueError(f"{BLOCK_N=} must be 128, {BLOCK_M=} 256, {BLOCK_K=} 64, {STAGES=} 2 or more")
B_SIZE, STAGE = BLOCK_N * KEPT, BLOCK_N * KEPT + BLOCK_M * BLOCK_K  # values of a tile of B, of a pair
SHARE, PAIR_N = BLOCK_M // CLUSTER, CLUSTER * BLOCK_N  # rows of A that a block asks for; columns of two blocks
WARP_N, PART = 16, 32  # columns of results of a warp; rows of them that leave together
SLAB, SLABS = PART * WARP_N, 2  # values of them; of a warp, one is written while the other one leaves
LEAVING = STAGES * STAGE  # where slabs lie
STAGE_BYTES, SHARED_BYTES = BYTES * STAGE, BYTES * (LEAVING + BLOCK_N // WARP_N * SLABS * SLAB)
B_ROWS, A_ROWS = 8 * KEPT * BYTES, 8 * BLOCK_K * BYTES  # what a pattern of the swizzle takes of a tile
B_STEP, A_STEP = MMA_K // 2 * BYTES >> 4, MMA_K * BYTES >> 4  # from one k to the next, as descriptors count
ACC, PARTS = BLOCK_M // 2, BLOCK_M // PART  # sums of a thread
AHEAD = 2  # stages that words are loaded ahead
locate = hopper.locating(GROUP_N, PAIR_N, BLOCK_M)  # of a pair


@inlined
@narrow
def load_tiles(tiles, bars, stage, b_map, a_source, n0, m0, k0):
    """Ask for the block's tile of B and its share of A's, for both; zeros outside. a_source: A's map, the rank."""
    a_map, rank = a_source
    start = stage * STAGE
    hopper.barrier_expect(bars, stage, STAGE_BYTES)
    hopper.tma_load2(tiles, start, b_map, bars, stage, n0 + rank * BLOCK_N, k0 // 2)
    first = rank * SHARE
    at = start + B_SIZE + first * BLOCK_K
    hopper.tma_load2_multicast(tiles, at, a_map, bars, stage, m0 + first, k0, ALL)


produce = specialised.producing(load_tiles, locate, STAGES, BLOCK_K)


@inlined
@narrow
@unroll
def leave(c_map, m0, n0, tiles, own, acc, half, lane):
    """The warp's 16 columns of C from (m0, n0) on, PART rows at a time; its slabs begin at tiles[own]."""
    row, piece = lane // 16 * 8 + lane % 8, lane // 8 % 2
    swizzled = row * WARP_N + (piece ^ row // 4 % 2) * 8
    for part in unrolled(PARTS):
        slab = own + part % SLABS * SLAB
        if lane == 0:
            hopper.tma_wait_read(SLABS - 1)  # what lay here has left
        cuda.syncwarp()
        for j in unrolled(PART // 16):
            for i in unrolled(8):
                half[i] = to_half(acc[part * (PART // 2) + 8 * j + i])
            stmatrix4_transposed(tiles, slab + 16 * WARP_N * j + swizzled, half, 0)
        hopper.fence_async()
        cuda.syncwarp()
        if lane == 0:
            hopper.tma_store2(c_map, m0 + part * PART, n0, tiles, slab)
            hopper.tma_commit()


@jit(THREADS, cluster=CLUSTER)
@narrow
@unroll
def hgemm_sparse_wgmma(a_map, b_map, places, c_map, M, N, K):
    tiles = hopper.half_tiles()  # dynamic shared memory: a launch may ask for more than 48 KiB of it
    filled, emptied = hopper.barrier_array(STAGES), hopper.barrier_array(STAGES)
    acc = cuda.local.array(ACC, float32)
    half = cuda.local.array(8, float16)
    blocks_n, blocks_m = uint32((N + PAIR_N - 1) // PAIR_N), uint32((M + BLOCK_M - 1) // BLOCK_M)
    turns = cuda.blockIdx.x // CLUSTER, blocks_n * blocks_m, cuda.gridDim.x // CLUSTER  # first, end, step
    steps = int32((K + BLOCK_K - 1) // BLOCK_K)
    last = uint32(steps) - 1
    thread, rank = cuda.threadIdx.x, hopper.cluster_rank()
    warpgroup = thread // 128
    if thread == 0:
        hopper.open_stages(filled, emptied, STAGES, CLUSTER * CONSUMERS)
        hopper.publish_barriers()
    hopper.cluster_sync()

    if warpgroup == CONSUMERS:
        # stage: one thread, whenever a stage is empty
        hopper.give_registers(FEW)
        if thread == CONSUMERS * 128:
            produce(tiles, filled, emptied, b_map, (a_map, rank), turns, blocks_n, blocks_m, steps)
    else:
        hopper.take_registers(MANY)
        # locate: the first tiles, of B from the warpgroup's rows on, the lane's words, where the warp's sums leave.
        # Members 0 and 1 of a group of lanes have the words of 32 k, the others those of the next
        b_at = hopper.descriptor(tiles, warpgroup * MMA_N * KEPT, 0, B_ROWS)
        a_at = hopper.descriptor(tiles, B_SIZE, 0, A_ROWS)
        tells = thread % 128  # which block this thread tells that a stage is empty
        warp, lane = thread // 32, thread % 32
        own, stage, parity = LEAVING + warp * SLABS * SLAB, 0, 0
        which = lane % 4 // 2
        word = lane // 4 * 4 + warp % 2 * 2 + lane % 2
        for tile in range(int32(turns[0]), int32(turns[1]), int32(turns[2])):
            n0, m0 = locate(tile, blocks_n, blocks_m)
            n0 += rank * BLOCK_N
            rows = n0 // 32 + warp // 2
            for i in range(ACC):
                acc[i] = float32(0.0)
            now, then = places[rows, which, word], places[rows, min(1, last) * 2 + which, word]
            before = stage
            for step in range(steps):
                following = places[rows, min(step + AHEAD, last) * 2 + which, word]
                hopper.barrier_wait(filled, stage, parity)

                # multiply: started here; the one before it has ended, and its stage may be filled again
                hopper.wgmma_fence()
                moved = uint64(stage * (STAGE_BYTES >> 4))
                hopper.wgmma_sp_f16(acc, 0, tiles, b_at + moved, a_at + moved, BLOCK_M, now, 0)
                b_k, a_k = b_at + moved + B_STEP, a_at + moved + A_STEP
                hopper.wgmma_sp_f16(acc, 0, tiles, b_k, a_k, BLOCK_M, now, 1)
                hopper.wgmma_commit()
                hopper.wgmma_wait(1)
                if step > 0:
                    pairs.release(emptied, before, tells)
                before = stage
                stage, parity = hopper.next_stage(stage, parity, STAGES)
                now, then = then, following
            hopper.wgmma_wait(0)
            pairs.release(emptied, before, tells)

            # store
            leave(c_map, m0, n0 + warp * WARP_N, tiles, own, acc, half, lane)
        if lane == 0:
            hopper.tma_wait_read(0)
    hopper.cluster_sync()  # a block that ended would take its shared memory with it


prepare = unaligned.prepare  # B, pruned: what is kept, and where it belongs


def launch(a, weights, c):
    kept, places = weights
    if not aligned(a, c):
        return unaligned.launch(a, weights, c)
    M, N = c.shape
    b_map, a_map = MAPS.tiled(kept, (BLOCK_N, KEPT)), MAPS.tiled(a, (SHARE, BLOCK_K))
    c_map = MAPS.tiled(c, (PART, WARP_N))
    blocks = hopper.persistent(-(-N // PAIR_N) * -(-M // BLOCK_M), CLUSTER)
    hgemm_sparse_wgmma[blocks, THREADS, 0, SHARED_BYTES](a_map, b_map, places, c_map, M, N, a.shape[1])
