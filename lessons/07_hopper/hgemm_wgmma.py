"""hgemm_wgmma: four warps multiply 64 x 256 straight from shared memory, and copy while the matrix unit works.

Previous step: hgemm_pipelined
New idea: `wgmma` reads both tiles where they lie. A *descriptor* says where a tile begins and how it is swizzled, 128
    threads start the multiplication together, and copy later tiles while it runs. What ordinary stores and `cp.async`
    wrote, the matrix unit sees after `fence_async`.
Loads per FMA: none by threads; the matrix unit reads (64 + 256) / (64 * 256) = 0.02 shared values.
Run: python -m lessons.07_hopper hgemm_wgmma
"""

from functools import lru_cache
from importlib import import_module

from numba import cuda, float32, uint32, uint64

from lessons.toolkit import hopper
from lessons.toolkit.grid import jit
from lessons.toolkit.memory import aligned, commit_group, wait_group
from lessons.toolkit.pasted import pasted, walk
from lessons.toolkit.unroll import unroll, unrolled

copying = import_module("lessons.07_hopper.helpers.copied_panels").copying

REQUIRES = "9.0a"
BLOCK_M, BLOCK_N, BLOCK_K = 128, 256, 64
STAGES = 4  # pairs of tiles in shared memory
GROUP_M = 16  # rows of tiles that are computed together and share columns of B in L2
TUNABLES = {"STAGES": (2, 3, 4), "GROUP_M": (4, 8, 16)}

MMA_M, MMA_N, MMA_K = 64, BLOCK_N, 16  # the tile that one instruction multiplies
ROW = 64  # values in a row of shared memory: the 128 bytes that the swizzle takes
if BLOCK_M % MMA_M or BLOCK_N not in (64, 128, 192, 256) or BLOCK_K != ROW or STAGES < 2:
    raise ValueError(f"{BLOCK_M=} {BLOCK_N=}, up to 256, must be multiples of 64, {BLOCK_K=} 64, {STAGES=} 2 or more")
THREADS = BLOCK_M // MMA_M * 128
A_SIZE, STAGE = BLOCK_M * BLOCK_K, (BLOCK_M + BLOCK_N) * BLOCK_K  # values of a tile of A, of a pair
LAST, AHEAD = (STAGES - 1) * STAGE, (STAGES - 1) * BLOCK_K
PENDING = STAGES - 2  # groups that may still travel when the next pair is needed
BYTES = 2  # of a value
STAGE_BYTES, SHARED_BYTES = BYTES * STAGE, BYTES * STAGES * STAGE
EIGHT_ROWS = 8 * ROW * BYTES  # what a pattern of the swizzle takes
PANEL = BLOCK_K * ROW  # 64 columns of a tile of B
K_STEPS = BLOCK_K // MMA_K
A_STEP, B_STEP = MMA_K * BYTES >> 4, MMA_K * ROW * BYTES >> 4  # from one k to the next, as descriptors count
PARTS, PART = BLOCK_N // 64, 32  # the sums of 64 columns are 32 for each thread
ACC = PARTS * PART  # sums of a thread


def multiplying(wgmma, N, K_STEPS, A_STEP, B_STEP):
    """Build the device function that starts a stage's products; descriptors a and b, moved on, say where they lie."""

    @pasted
    @unroll
    def multiply(acc, tiles, a, b, moved):
        hopper.wgmma_fence()
        for k in unrolled(K_STEPS):
            wgmma(acc, 0, tiles, a + (moved + k * A_STEP), b + (moved + k * B_STEP), N)
        hopper.wgmma_commit()

    return multiply


multiply = multiplying(hopper.wgmma_f16_rows, MMA_N, K_STEPS, A_STEP, B_STEP)


@lru_cache
def specialise(full):
    """Build the kernel; `full` promises whole tiles and aligned rows, so that copies need no guards."""
    begin, copy_tiles = copying(BLOCK_M, BLOCK_N, BLOCK_K, THREADS, full)

    @jit(THREADS)
    @unroll
    def hgemm_wgmma(a, b, c, wide, paired):
        tiles = hopper.half_tiles()  # dynamic shared memory: a launch may ask for more than 48 KiB of it
        acc = cuda.local.array(ACC, float32)
        M, N = c.shape
        K = a.shape[1]

        # locate: the block; blocks walk down GROUP_M rows before they move one column to the right
        blocks_m, blocks_n = (M + BLOCK_M - 1) // BLOCK_M, (N + BLOCK_N - 1) // BLOCK_N
        m0, n0 = walk(cuda.blockIdx.x, blocks_m, blocks_n, GROUP_M, BLOCK_M, BLOCK_N)

        # locate: what the thread copies, as flat offsets for k0 = 0
        thread = uint32(cuda.threadIdx.x)
        a_from, b_from = begin(m0, n0, N, K)

        # locate: the warpgroup's 64 rows of the first tile of A, and the first tile of B
        warpgroup = thread // uint32(128)
        a_at = hopper.descriptor(tiles, warpgroup * uint32(MMA_M * ROW), 0, EIGHT_ROWS)
        b_at = hopper.descriptor(tiles, A_SIZE, BYTES * PANEL, EIGHT_ROWS)

        for part in unrolled(PARTS):
            for j in range(PART):
                acc[part * PART + j] = float32(0.0)

        # stage: the first STAGES - 1 pairs of tiles, a group each
        for stage in range(STAGES - 1):
            if stage * BLOCK_K < K:
                copy_tiles(tiles, stage * STAGE, a, b, m0, n0, a_from, b_from, stage * BLOCK_K, wide)
            commit_group()

        read, write = uint32(0), uint32(LAST)
        for k0 in range(0, K, BLOCK_K):
            # stage: this pair has arrived, and all threads have multiplied the one before it
            wait_group(PENDING)
            hopper.fence_async()
            cuda.syncthreads()

            # multiply: started here, it runs on while copies start
            moved = uint64(read * BYTES >> 4)
            multiply(acc, tiles, a_at, b_at, moved)

            # stage: the pair that comes last so far, into the place of the one that was multiplied before this one
            if k0 + AHEAD < K:
                copy_tiles(tiles, write, a, b, m0, n0, a_from, b_from, k0 + AHEAD, wide)
            commit_group()
            write = read
            read = uint32(read + STAGE) if read < LAST else uint32(0)
            hopper.wgmma_wait(0)

        # store
        wait_group(0)
        m, n = m0 + thread // 32 * 16, n0
        for part in unrolled(PARTS):
            hopper.store_part(c, m, n + part * 64, acc, uint32(part * PART), paired)

    return hgemm_wgmma


def launch(a, b, c):
    M, N = c.shape
    wide, paired = aligned(a, b), aligned(c, to=4)
    full = wide and M % BLOCK_M == 0 and N % BLOCK_N == 0 and a.shape[1] % BLOCK_K == 0
    blocks = -(-M // BLOCK_M) * -(-N // BLOCK_N)
    specialise(full)[blocks, THREADS, 0, SHARED_BYTES](a, b, c, wide, paired)
