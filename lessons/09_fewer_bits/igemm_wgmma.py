"""igemm_wgmma: a kernel for values of 8 bits: what lesson 07 built for 16, with half the bytes for each product.

Previous step: igemm_mma
Builds on: hgemm_tma_stores
New idea: `wgmma` multiplies 64 x 32 by 32 x N of int8 in the time of half as many k of float16. It takes both
    operands K-major only, so a tile of B is one box of the transpose. What a kernel has to know of its values is a
    `Kind`; the rest is hgemm_tma_stores, but a box of sums holds words. Where rows of C are not multiples of 16
    bytes, sums leave from registers. A of int8 comes through registers, as in hgemm_register_operand. Where rows of A
    are not multiples of 16 bytes, `launch` runs igemm_mma.
Loads per FMA: (BLOCK_M + BLOCK_N) / (BLOCK_M * BLOCK_N) values of one byte from L2, none by threads.
Run: python -m lessons.09_fewer_bits igemm_wgmma
"""

import importlib
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, int32, int64, uint32

from lessons.toolkit import hopper
from lessons.toolkit.grid import jit
from lessons.toolkit.maps import Maps
from lessons.toolkit.memory import aligned
from lessons.toolkit.narrow import narrow
from lessons.toolkit.pasted import pasted
from lessons.toolkit.unroll import inlined, unroll, unrolled

unaligned = importlib.import_module("lessons.09_fewer_bits.igemm_mma")
multiplying = importlib.import_module("lessons.07_hopper.hgemm_wgmma").multiplying
specialised = importlib.import_module("lessons.07_hopper.hgemm_specialised")
stores = importlib.import_module("lessons.07_hopper.hgemm_tma_stores")
im2col = importlib.import_module("lessons.07_hopper.hconv3d_im2col")
leave_part = importlib.import_module("lessons.07_hopper.conv3d_tf32_im2col").leave_part  # of values of 4 bytes

REQUIRES = "9.0a"
BLOCK_M, BLOCK_N, BLOCK_K = 128, 256, 128
STAGES = 4  # pairs of tiles in shared memory
GROUP_M = 16  # rows of tiles that are computed together and share columns of B in L2
CONSUMERS, THREADS, FEW, MANY = specialised.CONSUMERS, specialised.THREADS, specialised.FEW, specialised.MANY
TUNABLES = {"BLOCK_N": (128, 256), "STAGES": (2, 3, 4), "GROUP_M": (4, 8, 16)}

MMA_M, MMA_K = 64, 32  # rows and k of the tile that one instruction multiplies; its columns are BLOCK_N
MAPS = Maps()
if BLOCK_M != 2 * MMA_M or BLOCK_N not in (128, 256) or BLOCK_K != 128 or STAGES < 2:
    raise ValueError(f"{BLOCK_M=} must be 128, {BLOCK_N=} 128 or 256, {BLOCK_K=} 128, {STAGES=} 2 or more")
ROW = BLOCK_K // 4  # words of a row of a tile
A_SIZE = BLOCK_M * ROW  # words of a tile of A
STAGE, STAGE_BYTES = (BLOCK_M + BLOCK_N) * ROW, (BLOCK_M + BLOCK_N) * BLOCK_K  # words of a pair, and its bytes
WARP_M, SLABS = stores.WARP_M, stores.SLABS
SLAB, LEAVING = WARP_M * ROW, STAGES * STAGE  # words of a box of results on its way; where these lie
SHARED_BYTES = 4 * (LEAVING + CONSUMERS * 4 * SLABS * SLAB)
EIGHT_ROWS = 8 * BLOCK_K  # bytes that a pattern of the swizzle takes
K_STEPS = BLOCK_K // MMA_K
K_STEP = MMA_K >> 4  # from one k to the next, as descriptors count
ACC = BLOCK_N // 2  # sums of a thread
EIGHTS = BLOCK_N // 8  # columns of results, eight at a time
locate = hopper.locating(GROUP_M, BLOCK_M, BLOCK_N)


def leaving_words(leave_part, packed):
    """Build the function by which a warp's rows of a tile of C leave, from (m0 + row, n0) on, through its slabs at
    tiles[own], in boxes of words; a word is `packed` columns."""
    boxed = stores.leaving(leave_part, ROW, BLOCK_N // (packed * ROW))

    @inlined
    @narrow
    def leave(to_map, m0, row, n0, tiles, own, acc, lane, N, operands):
        boxed(to_map, m0, row, n0 // packed, tiles, own, acc, 0, lane)

    return leave


class Kind(NamedTuple):
    """Of values: a sum's type, shared memory, a consumer's loop over stages, how pairs are stored, how all leave;
    `releasing`: how many warps of a consumer say that a stage is empty, all of them where threads read it."""

    sum: Any
    tiles: Any
    consume: Any
    store: Any = unaligned.store_pair
    leave: Any = leaving_words(leave_part, 1)
    releasing: int = 1


@inlined
@narrow
def load_tiles(tiles, bars, stage, a_map, b_map, m0, n0, k0):
    """Ask for the pair of tiles from k0 on, a box each; what lies outside A or B counts as zero."""
    start = stage * STAGE
    hopper.barrier_expect(bars, stage, STAGE_BYTES)
    hopper.tma_load2(tiles, start, a_map, bars, stage, m0, k0)
    hopper.tma_load2(tiles, start + A_SIZE, b_map, bars, stage, n0, k0)


def consuming(wgmma):
    """A consumer's loop over the stages of a tile of C, by this instruction."""
    multiply = multiplying(wgmma, BLOCK_N, K_STEPS, K_STEP, K_STEP)
    return specialised.consuming(multiply, STAGES, STAGE_BYTES)


produce = specialised.producing(load_tiles, locate, STAGES, ROW)
INT8 = im2col.planning.Kind(
    4, 8, int32, hopper.word_tiles, hopper.wgmma_s8, hopper.wgmma_s8_registers, leave_part, sum_type=int32, packed=4
)
_, FRAG, begins_at, consume_tiles = im2col.multiplying.products(INT8, STAGES, STAGE, 1, BLOCK_N, ROW, 0)


@pasted
@narrow
def consume_s8(acc, tiles, filled, emptied, stage, parity, steps, a_at, b_at, leads):
    """A consumer's loop for int8: with 256 columns A comes through registers, with 128 the unit reads it itself."""
    frag, thread = cuda.local.array(FRAG, int32), cuda.threadIdx.x
    warp, lane = thread // 32, thread % 32
    at = begins_at(tiles, thread // 128, warp * WARP_M, lane)
    return consume_tiles(acc, frag, tiles, filled, emptied, stage, parity, steps, at, b_at, lane)


S8 = Kind(int32, hopper.word_tiles, consume_s8, releasing=4)


@lru_cache
def specialise(kind, boxes):
    """Build the kernel for values of this kind; `boxes`: sums leave through the copy engine, and c is a map of C."""
    sum_type, all_tiles, consume, store, leave, releasing = kind

    @jit(THREADS)
    @narrow
    @unroll
    def igemm_wgmma(a_map, b_map, c, M, N, K, paired, operands):
        tiles = all_tiles()  # dynamic shared memory: a launch may ask for more than 48 KiB of it
        filled, emptied = hopper.barrier_array(STAGES), hopper.barrier_array(STAGES)
        acc = cuda.local.array(ACC, sum_type)
        blocks_m, blocks_n = uint32((M + BLOCK_M - 1) // BLOCK_M), uint32((N + BLOCK_N - 1) // BLOCK_N)
        turns = cuda.blockIdx.x, blocks_m * blocks_n, cuda.gridDim.x  # the block's first tile, where they end, a step
        steps = int32((K + BLOCK_K - 1) // BLOCK_K)
        thread = cuda.threadIdx.x
        warpgroup = thread // 128
        if thread == 0:
            hopper.open_stages(filled, emptied, STAGES, CONSUMERS * releasing)
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
            b_at = hopper.descriptor(tiles, A_SIZE, 0, EIGHT_ROWS)
            leads, warp, lane = thread % 128 == 0, thread // 32, thread % 32
            own, stage, parity = LEAVING + warp * SLABS * SLAB, 0, 0
            for tile in range(int32(turns[0]), int32(turns[1]), int32(turns[2])):
                m0, n0 = locate(tile, blocks_m, blocks_n)
                for j in range(ACC):
                    acc[j] = sum_type(0)
                stage, parity = consume(acc, tiles, filled, emptied, stage, parity, steps, a_at, b_at, leads)

                # store
                if boxes:
                    leave(c, m0, warp * WARP_M, n0, tiles, own, acc, lane, uint32(N), operands)
                else:
                    m, n = int64(m0 + warp * WARP_M + lane // 4), int64(n0 + lane % 4 * 2)
                    for j in unrolled(EIGHTS):
                        store(c, m, n + j * 8, acc, 4 * j, paired, operands)
                        store(c, m + 8, n + j * 8, acc, 4 * j + 2, paired, operands)
            if lane == 0:
                hopper.tma_wait_read(0)

    return igemm_wgmma


prepare = unaligned.prepare  # the transpose of B


def product(a, b_t, c, kind, operands=()):
    """Launch the kernel for values of this kind: c = a @ b_t transposed. `operands` are for the kind's `store`."""
    M, N = c.shape
    word = np.dtype(str(kind.sum))
    a_map, b_map = (MAPS.tiled(part.view(word), (rows, ROW)) for part, rows in ((a, BLOCK_M), (b_t, BLOCK_N)))
    boxes = aligned(c)
    blocks = hopper.persistent(-(-M // BLOCK_M) * -(-N // BLOCK_N))
    specialise(kind, boxes)[blocks, THREADS, 0, SHARED_BYTES](
        a_map, b_map, MAPS.tiled(c.view(word), (WARP_M, ROW)) if boxes else c, M, N, a.shape[1],
        aligned(c, to=2 * c.dtype.itemsize), operands,
    )  # fmt: skip


def launch(a, b_t, c, finish=None):
    """c = a @ b; a `finish` of helpers/quantised makes int8 of the sums before they are stored."""
    if not aligned(a):
        return unaligned.launch(a, b_t, c, finish)
    if finish is None:
        return product(a, b_t, c, S8)
    kind = S8._replace(store=finish.store, leave=finish.leaving(BLOCK_N // (4 * ROW)))
    product(a, b_t, c, kind, finish.operands)
