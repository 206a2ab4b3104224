"""A product by Hopper's asynchronous machine: TMA, barriers that count bytes, wgmma, stores by TMA. For tests alone.

A warp of the first warpgroup asks for tiles; the second warpgroup multiplies 64 x 128 sums. Rows of whole 16 bytes.
"""

from numba import cuda, float32, uint64

from lessons.toolkit.grid import jit
from lessons.toolkit.hopper import (
    barrier_array,
    barrier_arrive,
    barrier_expect,
    barrier_init,
    barrier_wait,
    descriptor,
    fence_async,
    give_registers,
    half_tiles,
    publish_barriers,
    take_registers,
    tma_commit,
    tma_load2,
    tma_store2,
    tma_wait_read,
    wgmma_commit,
    wgmma_f16_rows,
    wgmma_fence,
    wgmma_wait,
)
from lessons.toolkit.maps import Maps
from lessons.toolkit.mma import to_half

BLOCK_M, BLOCK_N, BLOCK_K = 64, 128, 64
STAGES = 3
THREADS = 256
A_TILE, PANEL = BLOCK_M * BLOCK_K, BLOCK_K * 64
STAGE = A_TILE + 2 * PANEL
BYTES = 2 * (STAGES * STAGE + BLOCK_M * BLOCK_N)


@jit(THREADS, 2)
def hgemm(a_map, b_map, c_map, K):
    tiles = half_tiles()
    bars = barrier_array(2 * STAGES)
    acc = cuda.local.array(BLOCK_N // 2, float32)
    thread = cuda.threadIdx.x
    m0, n0 = cuda.blockIdx.y * BLOCK_M, cuda.blockIdx.x * BLOCK_N
    if thread == 0:
        for slot in range(STAGES):
            barrier_init(bars, slot, 1)
            barrier_init(bars, STAGES + slot, 1)
        publish_barriers()
    cuda.syncthreads()
    out = STAGES * STAGE
    if thread < 128:
        give_registers(40)
        if thread == 0:
            for k0 in range(0, K, BLOCK_K):
                slot, turn = k0 // BLOCK_K % STAGES, k0 // BLOCK_K // STAGES
                barrier_wait(bars, STAGES + slot, turn % 2 ^ 1)
                barrier_expect(bars, slot, 2 * STAGE)
                tma_load2(tiles, slot * STAGE, a_map, bars, slot, m0, k0)
                for panel in range(2):
                    at = slot * STAGE + A_TILE + panel * PANEL
                    tma_load2(tiles, at, b_map, bars, slot, k0, n0 + panel * 64)
    else:
        take_registers(200)
        for i in range(BLOCK_N // 2):
            acc[i] = float32(0.0)
        for k0 in range(0, K, BLOCK_K):
            slot, turn = k0 // BLOCK_K % STAGES, k0 // BLOCK_K // STAGES
            barrier_wait(bars, slot, turn % 2)
            a = descriptor(tiles, slot * STAGE, 0, 1024)
            b = descriptor(tiles, slot * STAGE + A_TILE, 2 * PANEL, 1024)
            wgmma_fence()
            for k in range(4):
                wgmma_f16_rows(acc, 0, tiles, a + uint64(2 * k), b + uint64(128 * k), BLOCK_N)
            wgmma_commit()
            wgmma_wait(0)
            if thread == 128:
                barrier_arrive(bars, STAGES + slot)
        lane, row0 = thread % 32, thread // 32 % 4 * 16
        for i in range(BLOCK_N // 2):
            row, column = row0 + lane // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * (lane % 4) + i % 2
            at = out + column // 64 * PANEL + row * 64 + (column % 64 ^ 8 * (row % 8))
            tiles[at] = to_half(acc[i])
        fence_async()
    cuda.syncthreads()
    if thread == 128:
        for panel in range(2):
            tma_store2(c_map, m0, n0 + panel * 64, tiles, out + panel * PANEL)
        tma_commit()
        tma_wait_read(0)


def launch(a, b, c):
    M, N = c.shape
    a_map, b_map = Maps().tiled(a, (BLOCK_M, BLOCK_K)), Maps().tiled(b, (BLOCK_K, 64))
    c_map, K = Maps().tiled(c, (BLOCK_M, 64)), a.shape[1]
    grid = -(-N // BLOCK_N), -(-M // BLOCK_M)
    hgemm[grid, THREADS, 0, BYTES](a_map, b_map, c_map, K)
