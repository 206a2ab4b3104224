"""Two blocks of a cluster send each other half of a tile."""

import importlib

from numba import cuda, float32, uint32, uint64

from lessons.toolkit import hopper
from lessons.toolkit.grid import jit
from lessons.toolkit.maps import Maps
from lessons.toolkit.memory import aligned, store2_rounded
from lessons.toolkit.unroll import unroll, unrolled

REQUIRES = "9.0a"
BLOCK_M, BLOCK_N, BLOCK_K = 64, 128, 64
STAGES, CLUSTER = 2, 2
THREADS = 128 + 32
PANEL, STAGE = 64 * 64, 3 * 64 * 64
SLAB, LEAVING = 16 * 64, STAGES * STAGE
STAGE_BYTES, SHARED_BYTES = 2 * STAGE, 2 * (LEAVING + 4 * SLAB)
unaligned = importlib.import_module("lessons.06_tensor_cores.hgemm_mma")
MAPS = Maps()


@jit(THREADS, cluster=CLUSTER)
@unroll
def product(a_map, b_map, c_map, N, K):
    tiles = hopper.half_tiles()
    filled, emptied = hopper.barrier_array(STAGES), hopper.barrier_array(STAGES)
    acc = cuda.local.array(64, float32)
    thread, rank = uint32(cuda.threadIdx.x), hopper.cluster_rank()
    blocks_n = (N + BLOCK_N - 1) // BLOCK_N
    pair = cuda.blockIdx.x // CLUSTER
    m0, n0 = (pair // blocks_n * CLUSTER + rank) * BLOCK_M, pair % blocks_n * BLOCK_N
    if thread == 0:
        for s in range(STAGES):
            hopper.barrier_init(filled, s, 1)
            hopper.barrier_init(emptied, s, CLUSTER)
        hopper.publish_barriers()
    hopper.cluster_sync()
    stage, parity = uint32(0), uint32(0)
    if thread == 128:
        for k0 in range(0, K, BLOCK_K):
            hopper.barrier_wait(emptied, stage, parity ^ uint32(1))
            hopper.barrier_expect(filled, stage, STAGE_BYTES)
            at = stage * uint32(STAGE)
            hopper.tma_load2(tiles, at, a_map, filled, stage, m0, k0)
            at += uint32(PANEL) + rank * uint32(PANEL)
            hopper.tma_load2_multicast(tiles, at, b_map, filled, stage, k0, n0 + rank * 64, 3)
            stage += uint32(1)
            if stage == uint32(STAGES):
                stage, parity = uint32(0), parity ^ uint32(1)
    elif thread < 128:
        for i in range(64):
            acc[i] = float32(0.0)
        a_at, b_at = hopper.descriptor(tiles, 0, 0, 1024), hopper.descriptor(tiles, PANEL, 8192, 1024)
        for _ in range(0, K, BLOCK_K):
            hopper.barrier_wait(filled, stage, parity)
            moved = uint64(stage * uint32(STAGE_BYTES >> 4))
            hopper.wgmma_fence()
            for k in unrolled(4):
                a, b = a_at + moved + uint64(k * 2), b_at + moved + uint64(k * 128)
                hopper.wgmma_f16_rows(acc, 0, tiles, a, b, BLOCK_N)
            hopper.wgmma_commit()
            hopper.wgmma_wait(0)
            if thread < CLUSTER:
                hopper.barrier_arrive_at(emptied, stage, thread)
            stage += uint32(1)
            if stage == uint32(STAGES):
                stage, parity = uint32(0), parity ^ uint32(1)
        warp, lane = thread // uint32(32), thread % uint32(32)
        slab, row, pairs = uint32(LEAVING) + warp * uint32(SLAB), lane // uint32(4), lane % uint32(4) * uint32(2)
        for part in range(2):
            if lane == 0:
                hopper.tma_wait_read(0)
            cuda.syncwarp()
            for j in range(8):
                at = slab + row * uint32(64) + (uint32(j) ^ row) * uint32(8) + pairs
                store2_rounded(tiles, at, acc, part * 32 + 4 * j)
                store2_rounded(tiles, at + uint32(8 * 64), acc, part * 32 + 4 * j + 2)
            hopper.fence_async()
            cuda.syncwarp()
            if lane == 0:
                hopper.tma_store2(c_map, m0 + warp * uint32(16), n0 + part * 64, tiles, slab)
                hopper.tma_commit()
        if lane == 0:
            hopper.tma_wait_read(0)
    hopper.cluster_sync()


def launch(a, b, c):
    if not aligned(a, b, c):
        return unaligned.launch(a, b, c)
    M, N = c.shape
    a_map, b_map = MAPS.tiled(a, (BLOCK_M, 64)), MAPS.tiled(b, (BLOCK_K, 64))
    c_map = MAPS.tiled(c, (16, 64))
    blocks = CLUSTER * -(-M // (CLUSTER * BLOCK_M)) * -(-N // BLOCK_N)
    product[blocks, THREADS, 0, SHARED_BYTES](a_map, b_map, c_map, N, a.shape[1])
