"""hgemm_tma: one thread asks for whole tiles, and barriers count the bytes that arrive.

Previous step: hgemm_wgmma
New idea: a *tensor map* describes A or B once, on the host. One thread names a tile's row and column, and the copy
    engine (TMA) fetches it: swizzled, zeros outside. A barrier in shared memory is told how many bytes to expect; it
    completes a *phase* when they have all come. Where rows are not multiples of 16 bytes, `launch` runs
    hgemm_pipelined.
Loads per FMA: as in hgemm_wgmma; a thread's instructions for copies are gone.
Run: python -m lessons.07_hopper hgemm_tma
"""

import importlib

from numba import cuda, float32, uint32

from lessons.toolkit import hopper
from lessons.toolkit.grid import jit
from lessons.toolkit.maps import Maps
from lessons.toolkit.memory import aligned
from lessons.toolkit.pasted import walk
from lessons.toolkit.unroll import inlined, unroll, unrolled

unaligned = importlib.import_module("lessons.06_tensor_cores.hgemm_pipelined")
wgmma = importlib.import_module("lessons.07_hopper.hgemm_wgmma")

REQUIRES = "9.0a"
BLOCK_M, BLOCK_N, BLOCK_K, STAGES, GROUP_M = wgmma.BLOCK_M, wgmma.BLOCK_N, wgmma.BLOCK_K, wgmma.STAGES, wgmma.GROUP_M
MMA_M, ROW, BYTES, EIGHT_ROWS, PANEL = wgmma.MMA_M, wgmma.ROW, wgmma.BYTES, wgmma.EIGHT_ROWS, wgmma.PANEL
THREADS, A_SIZE, STAGE, AHEAD = wgmma.THREADS, wgmma.A_SIZE, wgmma.STAGE, wgmma.AHEAD
STAGE_BYTES, SHARED_BYTES = wgmma.STAGE_BYTES, wgmma.SHARED_BYTES
PARTS, PART, ACC, multiply = wgmma.PARTS, wgmma.PART, wgmma.ACC, wgmma.multiply
MAPS = Maps()


@inlined
def load_tiles(tiles, bars, stage, a_map, b_map, m0, n0, k0):
    """Ask for the pair of tiles from k0 on; what lies outside A or B counts as zero."""
    start = stage * STAGE
    hopper.barrier_expect(bars, stage, STAGE_BYTES)
    hopper.tma_load2(tiles, start, a_map, bars, stage, m0, k0)
    for panel in range(PARTS):
        hopper.tma_load2(tiles, start + A_SIZE + panel * PANEL, b_map, bars, stage, k0, n0 + panel * ROW)


@jit(THREADS)
@unroll
def hgemm_tma(a_map, b_map, c, K, paired):
    tiles = hopper.half_tiles()  # dynamic shared memory: a launch may ask for more than 48 KiB of it
    arrived = hopper.barrier_array(STAGES)
    acc = cuda.local.array(ACC, float32)
    M, N = c.shape

    # locate: the block; blocks walk down GROUP_M rows before they move one column to the right
    blocks_m, blocks_n = (M + BLOCK_M - 1) // BLOCK_M, (N + BLOCK_N - 1) // BLOCK_N
    m0, n0 = walk(cuda.blockIdx.x, blocks_m, blocks_n, GROUP_M, BLOCK_M, BLOCK_N)

    # locate: the warpgroup's 64 rows of the first tile of A, and the first tile of B
    thread = uint32(cuda.threadIdx.x)
    warpgroup = thread // uint32(128)
    a_at = hopper.descriptor(tiles, warpgroup * uint32(MMA_M * ROW), 0, EIGHT_ROWS)
    b_at = hopper.descriptor(tiles, A_SIZE, BYTES * PANEL, EIGHT_ROWS)

    for part in unrolled(PARTS):
        for j in range(PART):
            acc[part * PART + j] = float32(0.0)

    # stage: the first STAGES - 1 pairs of tiles
    if thread == 0:
        for i in range(STAGES):
            hopper.barrier_init(arrived, i, 1)
        hopper.publish_barriers()
        for i in range(STAGES - 1):
            if i * BLOCK_K < K:
                load_tiles(tiles, arrived, i, a_map, b_map, m0, n0, i * BLOCK_K)

    stage, parity, write = uint32(0), uint32(0), uint32(STAGES - 1)
    for k0 in range(0, K, BLOCK_K):
        # stage: all threads have multiplied the pair before this one, and this one has arrived
        cuda.syncthreads()
        hopper.barrier_wait(arrived, stage, parity)

        # multiply: started here, it runs on while the copy engine is asked
        moved = stage * (STAGE_BYTES >> 4)
        multiply(acc, tiles, a_at, b_at, moved)

        # stage: the pair that comes last so far, into the place of the one that was multiplied before this one
        if thread == 0 and k0 + AHEAD < K:
            load_tiles(tiles, arrived, write, a_map, b_map, m0, n0, k0 + AHEAD)
        write = stage
        stage, parity = hopper.next_stage(stage, parity, STAGES)
        hopper.wgmma_wait(0)

    # store
    m, n = m0 + thread // 32 * 16, n0
    for part in unrolled(PARTS):
        hopper.store_part(c, m, n + part * 64, acc, uint32(part * PART), paired)


def launch(a, b, c):
    if not aligned(a, b):
        return unaligned.launch(a, b, c)
    M, N = c.shape
    a_map, b_map = MAPS.tiled(a, (BLOCK_M, ROW)), MAPS.tiled(b, (BLOCK_K, ROW))
    blocks = -(-M // BLOCK_M) * -(-N // BLOCK_N)
    hgemm_tma[blocks, THREADS, 0, SHARED_BYTES](a_map, b_map, c, a.shape[1], aligned(c, to=4))
