"""Exercise 07.14, write: one warpgroup, 64 x 64 of C, from a blank file.

Write kernel and launch, for any M, and N and K that are multiples of 8: a block is 128 threads and computes 64 x
64 of C, 64 k at a time, with one stage. One thread asks for both tiles, the barrier counts their bytes, four
wgmma_f16_rows multiply. The next tiles are asked for when these are multiplied. At most 16,384 bytes of shared
memory, which launch asks for as dynamic; nothing is read from global memory by threads.
Grade: python -m common grade 07.14
"""

from numba import cuda, float32, uint32, uint64

from lessons.toolkit import hopper
from lessons.toolkit.grid import jit
from lessons.toolkit.maps import Maps
from lessons.toolkit.mma import to_half
from lessons.toolkit.unroll import unroll, unrolled

REQUIRES = "9.0a"
MAPS = Maps()


# >>> your code: 37 lines
@jit(128)
@unroll
def hgemm_one_warpgroup(a_map, b_map, c, K):
    tiles = hopper.half_tiles()
    arrived = hopper.barrier_array(1)
    acc = cuda.local.array(32, float32)
    M, N = c.shape
    thread, parity = uint32(cuda.threadIdx.x), uint32(0)
    m0, n0 = cuda.blockIdx.x * 64, cuda.blockIdx.y * 64
    if thread == 0:
        hopper.barrier_init(arrived, 0, 1)
        hopper.publish_barriers()
    for i in range(32):
        acc[i] = float32(0.0)
    a_at, b_at = hopper.descriptor(tiles, 0, 0, 1024), hopper.descriptor(tiles, 64 * 64, 0, 1024)
    for k0 in range(0, K, 64):
        # stage
        cuda.syncthreads()
        if thread == 0:
            hopper.barrier_expect(arrived, 0, 16384)
            hopper.tma_load2(tiles, 0, a_map, arrived, 0, m0, k0)
            hopper.tma_load2(tiles, 64 * 64, b_map, arrived, 0, k0, n0)
        hopper.barrier_wait(arrived, 0, parity)
        parity = parity ^ uint32(1)

        # multiply
        hopper.wgmma_fence()
        for k in unrolled(4):
            hopper.wgmma_f16_rows(acc, 0, tiles, a_at + uint64(2 * k), b_at + uint64(128 * k), 64)
        hopper.wgmma_commit()
        hopper.wgmma_wait(0)

    # store
    m, n = m0 + thread // 32 * 16 + thread % 32 // 4, n0 + thread % 4 * 2
    for i in range(32):
        row, column = m + i // 2 % 2 * 8, n + i // 4 * 8 + i % 2
        if row < M and column < N:
            c[row, column] = to_half(acc[i])


def launch(a, b, c):
    M, N = c.shape
    a_map, b_map = MAPS.tiled(a, (64, 64)), MAPS.tiled(b, (64, 64))
    hgemm_one_warpgroup[(-(-M // 64), -(-N // 64)), 128, 0, 16384](a_map, b_map, c, a.shape[1])


# <<<
