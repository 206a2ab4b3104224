"""gemm_tf32x3: FP32 results from tensor cores: each value is split in two TF32 values, and three products are summed.

Previous step: gemm_tuned
Builds on: hgemm_tma_stores
New idea: a float32 has 24 bits, a TF32 number 11. a = a_high + a_low keeps nearly all of them, and a @ b = a_low @
    b_high + a_high @ b_low + a_high @ b_high, but for a product that is 2**22 times smaller. The matrix unit cuts off
    where it adds, so each stage of 32 k is summed there from zero, small products first, and added to sums in
    registers, where adding rounds (Ootomo and Yokota 2022). A is split in registers, B by a kernel of its own
    (helpers/tf32_split.py).
Loads per FMA: 1 / BLOCK_N of A from shared memory by threads; 1 / BLOCK_N + 2 / BLOCK_M by the copy engine.
Where rows are no multiple of 16 bytes, or K is below 16, gemm_tuned computes.
Run: python -m lessons.07_hopper gemm_tf32x3
"""

import importlib

import numpy as np
from numba import cuda, float32, uint32

from lessons.toolkit import hopper
from lessons.toolkit.grid import jit
from lessons.toolkit.maps import Maps
from lessons.toolkit.memory import VECTOR, aligned
from lessons.toolkit.unroll import inlined, unroll, unrolled

unaligned = importlib.import_module("lessons.04_register_blocking.gemm_tuned")
stores = importlib.import_module("lessons.07_hopper.hgemm_tma_stores")
pairs = importlib.import_module("lessons.07_hopper.helpers.pairs")
splitting = importlib.import_module("lessons.07_hopper.helpers.tf32_split")
leave_part = importlib.import_module("lessons.07_hopper.conv3d_tf32_im2col").leave_part

REQUIRES = "9.0a"
PRECISION = "tf32x3"
BLOCK_M, BLOCK_N, BLOCK_K = 128, 128, 32
STAGES = 4  # of a tile of A and two of B in shared memory
GROUP_M = 8  # rows of pairs of tiles that are computed together and share columns of B in L2
FEW, MANY = 56, 224  # registers of a producer's thread and of a consumer's
LEAST_K = 16  # for sums of fewer products the one that is left out would show
TUNABLES = {"STAGES": (2, 3, 4), "GROUP_M": (2, 4, 8)}

CLUSTER, ALL = pairs.CLUSTER, pairs.ALL  # blocks that share tiles of B
MMA_M, MMA_K = 64, 8  # the tile that one instruction multiplies, BLOCK_N wide
ROW = 32  # values in a row of shared memory: the 128 bytes that the swizzle takes
MAPS = Maps()
if BLOCK_M != 2 * MMA_M or BLOCK_N != 128 or BLOCK_K != ROW or STAGES < 2:
    raise ValueError(f"{BLOCK_M=} and {BLOCK_N=} must be 128, {BLOCK_K=} 32, {STAGES=} 2 or more")
CONSUMERS = BLOCK_M // MMA_M  # warpgroups
THREADS = (1 + CONSUMERS) * 128
A_SIZE, B_SIZE = BLOCK_M * BLOCK_K, BLOCK_N * BLOCK_K  # values of a tile
STAGE = A_SIZE + 2 * B_SIZE
BYTES = 4  # of a value
WARP_M = 16  # rows of results of a warp
SLABS, SLAB = 2, WARP_M * ROW  # of a warp, 32 columns each: one is written while the other one leaves
LEAVING = STAGES * STAGE  # where slabs lie
STAGE_BYTES, SHARED_BYTES = BYTES * STAGE, BYTES * (LEAVING + BLOCK_M // WARP_M * SLABS * SLAB)
EIGHT_ROWS = 8 * ROW * BYTES  # what a pattern of the swizzle takes
K_STEPS, STEP, LOW = BLOCK_K // MMA_K, MMA_K * BYTES >> 4, B_SIZE * BYTES >> 4  # in 16 bytes: to the next k, to b_low
SHARE = BLOCK_N // CLUSTER  # rows of a tile of B that one block asks for
ACC, FRAG = BLOCK_N // 2, K_STEPS * 4


@inlined
def locate(tile, blocks_m, blocks_n, rank):
    """Row and column of a block's tile; pairs walk down GROUP_M rows of pairs before they move one column on."""
    group, turn = tile // (GROUP_M * blocks_n), tile % (GROUP_M * blocks_n)
    rows = min(blocks_m - group * GROUP_M, GROUP_M)
    return ((group * GROUP_M + turn % rows) * CLUSTER + rank) * BLOCK_M, turn // rows * BLOCK_N


@inlined
def load_tiles(tiles, bars, stage, a_map, b_map, m0, n0, N, k0, rank):
    """Ask for the tile of A from k0 on, and for shares of B's two, for all; what lies outside A counts as zero."""
    start = stage * STAGE
    hopper.barrier_expect(bars, stage, STAGE_BYTES)
    hopper.tma_load2(tiles, start, a_map, bars, stage, m0, k0)
    at = start + A_SIZE + rank * SHARE * ROW
    n0 += rank * SHARE
    hopper.tma_load2_multicast(tiles, at, b_map, bars, stage, n0, k0, ALL)
    hopper.tma_load2_multicast(tiles, at + B_SIZE, b_map, bars, stage, N + n0, k0, ALL)


split_a = splitting.split_a
leave = stores.leaving(leave_part, ROW, BLOCK_N // ROW)


@jit(THREADS, cluster=CLUSTER)
@unroll
def gemm_tf32x3(a_map, b_map, c_map, M, N, K):
    tiles = hopper.float_tiles()  # dynamic shared memory: a launch may ask for more than 48 KiB of it
    filled, emptied = hopper.barrier_array(STAGES), hopper.barrier_array(STAGES)
    acc, total = cuda.local.array(ACC, float32), cuda.local.array(ACC, float32)
    high, low = cuda.local.array(FRAG, float32), cuda.local.array(FRAG, float32)
    blocks_m, blocks_n = (M + CLUSTER * BLOCK_M - 1) // (CLUSTER * BLOCK_M), (N + BLOCK_N - 1) // BLOCK_N
    thread, rank = uint32(cuda.threadIdx.x), hopper.cluster_rank()
    first, clusters = cuda.blockIdx.x // CLUSTER, cuda.gridDim.x // CLUSTER
    warpgroup = thread // 128
    if thread == 0:
        hopper.open_stages(filled, emptied, STAGES, CLUSTER * CONSUMERS * 4)
        hopper.publish_barriers()
    hopper.cluster_sync()

    stage, parity = uint32(0), uint32(0)
    if warpgroup == CONSUMERS:
        # stage: one thread, whenever a stage is empty
        hopper.give_registers(FEW)
        if thread == CONSUMERS * 128:
            for tile in range(first, blocks_m * blocks_n, clusters):
                m0, n0 = locate(tile, blocks_m, blocks_n, rank)
                for k0 in range(0, K, BLOCK_K):
                    hopper.barrier_wait(emptied, stage, parity ^ 1)  # the first STAGES waits pass at once
                    load_tiles(tiles, filled, stage, a_map, b_map, m0, n0, N, k0, rank)
                    stage, parity = hopper.next_stage(stage, parity, STAGES)
    else:
        hopper.take_registers(MANY)
        # locate: the first tile: where in A the lane begins, B, and where the warp's sums leave
        warp, lane = thread // uint32(32), thread % uint32(32)
        row, member = lane // uint32(4), lane % uint32(4)
        a_at, swizzle = (warp * uint32(WARP_M) + row) * uint32(ROW) + member, row * uint32(4)
        b_at = hopper.descriptor(tiles, A_SIZE, 0, EIGHT_ROWS)
        own = LEAVING + warp * SLABS * SLAB
        for tile in range(first, blocks_m * blocks_n, clusters):
            m0, n0 = locate(tile, blocks_m, blocks_n, rank)
            for j in range(ACC):
                total[j] = float32(0.0)
            for _ in range(0, K, BLOCK_K):
                hopper.barrier_wait(filled, stage, parity)
                split_a(tiles, a_at + stage * uint32(STAGE), swizzle, high, low)

                # multiply: from zero, small products first
                for j in range(ACC):
                    acc[j] = float32(0.0)
                b = b_at + stage * (STAGE_BYTES >> 4)
                hopper.wgmma_fence()
                for k in unrolled(K_STEPS):
                    hopper.wgmma_tf32_registers(acc, 0, low, 4 * k, tiles, b + k * STEP, BLOCK_N)
                for k in unrolled(K_STEPS):
                    hopper.wgmma_tf32_registers(acc, 0, high, 4 * k, tiles, b + LOW + k * STEP, BLOCK_N)
                for k in unrolled(K_STEPS):
                    hopper.wgmma_tf32_registers(acc, 0, high, 4 * k, tiles, b + k * STEP, BLOCK_N)
                hopper.wgmma_commit()
                hopper.wgmma_wait(0)
                cuda.syncwarp()  # threads have read A themselves: a stage is empty when every warp says so
                if lane < CLUSTER:
                    hopper.barrier_arrive_at(emptied, stage, lane)
                stage, parity = hopper.next_stage(stage, parity, STAGES)
                for j in range(ACC):  # while the other consumer's products are multiplied
                    total[j] += acc[j]

            # store
            leave(c_map, m0, warp * WARP_M, n0, tiles, own, total, 0, lane)
        if lane == 0:
            hopper.tma_wait_read(0)
    hopper.cluster_sync()  # a block that ended would take its shared memory with it


def workspace(problem):
    """B's two parts, turned; none where gemm_tuned computes."""
    if problem.K < LEAST_K or problem.K % VECTOR or problem.N % VECTOR:
        return None
    return cuda.device_array((2 * problem.N, problem.K), np.float32)


def launch(a, b, c, parts=None):
    if parts is None or not aligned(a, b, c):
        return unaligned.launch(a, b, c)
    (M, K), N = a.shape, c.shape[1]
    splitting.launch(b, parts)
    a_map, b_map, c_map = MAPS.tiled(a, (BLOCK_M, ROW)), MAPS.tiled(parts, (SHARE, ROW)), MAPS.tiled(c, (WARP_M, ROW))
    blocks = hopper.persistent(-(-M // (CLUSTER * BLOCK_M)) * -(-N // BLOCK_N), CLUSTER)
    gemm_tf32x3[blocks, THREADS, 0, SHARED_BYTES](a_map, b_map, c_map, M, N, K)
