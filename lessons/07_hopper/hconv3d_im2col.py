"""hconv3d_im2col: lesson 05's iterator has become hardware: the copy engine itself walks along the windows.

Previous step: hconv3d_mma
New idea: a tensor map of the kind "im2col" knows the image, its padding and stride. One request names the first
    pixel of a tile and a tap; the engine finds the pixels that follow, past the ends of rows and images, and writes
    zeros where a window hangs over the edge. No table, no mask, no thread that works out an address. What multiplies
    is hgemm_clustered without its clusters: multicast of filters gained nothing here. Tiles differ with the layer;
    where filters are few, all of them stay in shared memory. Few filters on a large layer: a kernel of its own
    (helpers/few_filters.py) makes pixels the columns, and lets the taps of a row share pixels that arrived once.
Loads per FMA: (BLOCK_M + BLOCK_N) / (BLOCK_M * BLOCK_N) values from L2, none by threads;
    with few filters about 1 / (S * K).
Where the copy engine cannot describe the arrays (rows of x, filt or y no multiple of 16 bytes, padding above 16,
    taps that reach more than 31 pixels, strides above 8), hconv3d_mma computes.
Run: python -m lessons.07_hopper hconv3d_im2col
"""

import importlib
from functools import lru_cache
from typing import NamedTuple

from numba import cuda, float32, int32, uint32, uint64
from numba.types import float16

from lessons.toolkit.grid import jit, multiprocessors
from lessons.toolkit.hopper import (
    barrier_array,
    barrier_arrive,
    barrier_expect,
    barrier_init,
    barrier_wait,
    descriptor,
    give_registers,
    half_tiles,
    publish_barriers,
    take_registers,
    tma_load2,
    tma_load_im2col,
    tma_wait_read,
    wgmma_commit,
    wgmma_f16,
    wgmma_f16_registers,
    wgmma_fence,
    wgmma_wait,
)
from lessons.toolkit.maps import Maps
from lessons.toolkit.memory import aligned
from lessons.toolkit.mma import ldmatrix4
from lessons.toolkit.unroll import inlined, unroll, unrolled

unaligned = importlib.import_module("lessons.06_tensor_cores.hconv3d_mma")
clustered = importlib.import_module("lessons.07_hopper.hgemm_clustered")
few_filters = importlib.import_module("lessons.07_hopper.helpers.few_filters")

REQUIRES = "9.0a"
# What a full GPU reaches with a tile, as a share of the best, and the tile, whose rows CONSUMERS warpgroups share
TILES = (
    (1.00, {"BLOCK_M": 128, "BLOCK_N": 256, "CONSUMERS": 2}),
    (0.98, {"BLOCK_M": 256, "BLOCK_N": 128, "CONSUMERS": 2}),
    (0.96, {"BLOCK_M": 128, "BLOCK_N": 128, "CONSUMERS": 2}),
    (0.95, {"BLOCK_M": 192, "BLOCK_N": 128, "CONSUMERS": 3}),
    (0.75, {"BLOCK_M": 256, "BLOCK_N": 64, "CONSUMERS": 2}),
    (0.60, {"BLOCK_M": 128, "BLOCK_N": 64, "CONSUMERS": 2}),
)
FEW = 56  # registers of a producer's thread
SHARED = 226 * 1024  # bytes of a block's shared memory, but for its barriers
LEAST_STAGES, MOST_STAGES = 4, 8  # that filters which stay must leave; that are of use
TUNABLES = {"BLOCK_M": (128, 192, 256), "BLOCK_N": (64, 128, 256), "CONSUMERS": (2, 3)}

MMA_M = 64  # rows of the tile that one instruction multiplies, BLOCK_N wide
WARP_M = 16  # rows of results of a warp, of one instruction
ROW_BYTES = 128  # of a row of shared memory, at most: what the widest swizzle takes
SLAB_BYTES = WARP_M * ROW_BYTES  # a row's width of results, on their way through shared memory
SLABS = 2  # of a warp: one is written while the other one leaves
REGISTERS = 65536  # of a multiprocessor
MAPS = Maps()


class Kind(NamedTuple):
    """What follows from the type of the values: bytes of one, the k of an instruction; the others are for kernels."""

    BYTES: int
    MMA_K: int
    value: object  # the type
    all_tiles: object  # the dynamic shared memory, as an array of it
    wgmma: object
    wgmma_registers: object
    leave_part: object
    tf32: bool  # the engine rounds to TF32 what it copies

    @property
    def row(self):
        """Values in a row of shared memory, at most."""
        return ROW_BYTES // self.BYTES


FP16 = Kind(2, 16, float16, half_tiles, wgmma_f16, wgmma_f16_registers, clustered.leave_part, tf32=False)


@lru_cache
def plan(GEMM_M, C, K, taps, kind=FP16):
    """The tile with the fewest turns for what it reaches."""

    def cost(choice):
        rate, tile = choice
        turns = -(-GEMM_M // tile["BLOCK_M"]) * -(-K // tile["BLOCK_N"])
        return -(-turns // multiprocessors()) * tile["BLOCK_M"] * tile["BLOCK_N"] / rate

    tile = {**min(TILES, key=cost)[1], "BLOCK_K": kind.row if kind.row // 2 < C else kind.row // 2}
    resident = taps * -(-C // tile["BLOCK_K"]) if tile["BLOCK_N"] >= K else 0
    return {**tile, "RESIDENT": resident if room(kind, **tile, RESIDENT=resident) >= LEAST_STAGES else 0}


def shipped(problem, kind=FP16):
    """The tile that the problem runs with unless another is asked for."""
    taps = problem.T * problem.R * problem.S
    return plan(problem.N * problem.O * problem.P * problem.Q, problem.C, problem.K, taps, kind)


def room(kind, BLOCK_M, BLOCK_N, BLOCK_K, CONSUMERS, RESIDENT):
    """STAGES that shared memory holds beside RESIDENT tiles of filters and the slabs of all warps."""
    left = SHARED - RESIDENT * BLOCK_N * BLOCK_K * kind.BYTES - CONSUMERS * 4 * SLABS * SLAB_BYTES
    return min(MOST_STAGES, left // ((BLOCK_M + (0 if RESIDENT else BLOCK_N)) * BLOCK_K * kind.BYTES))


@lru_cache
def specialise(BLOCK_M, BLOCK_N, BLOCK_K, CONSUMERS, RESIDENT, kind=FP16):
    """Build the kernel; RESIDENT: all the tiles of filters there are, which stay in shared memory; 0: they travel."""
    BYTES, MMA_K, ROW, value, all_tiles = kind.BYTES, kind.MMA_K, kind.row, kind.value, kind.all_tiles
    wgmma, wgmma_registers = kind.wgmma, kind.wgmma_registers
    SLAB = SLAB_BYTES // BYTES  # values
    STAGES = room(kind, BLOCK_M, BLOCK_N, BLOCK_K, CONSUMERS, RESIDENT)
    BANDS = BLOCK_M // CONSUMERS // MMA_M  # instructions that tile a consumer's rows
    if BLOCK_M != BANDS * CONSUMERS * MMA_M or CONSUMERS < 2:
        raise ValueError(f"{BLOCK_M=} must be a multiple of 64 {CONSUMERS=}, which are 2 at least")
    if BLOCK_N % ROW or BLOCK_N > 256 or STAGES < 2:
        raise ValueError(f"{BLOCK_N=} must be a multiple of {ROW=} up to 256, and leave 2 {STAGES=}")
    THREADS = (1 + CONSUMERS) * 128
    spare = REGISTERS // THREADS // 8 * 8 * THREADS - 128 * FEW
    MANY = spare // (CONSUMERS * 128) // 8 * 8  # registers of a consumer's thread
    A_SIZE, B_SIZE = BLOCK_M * BLOCK_K, BLOCK_N * BLOCK_K  # values of a tile
    STAGE = A_SIZE if RESIDENT else A_SIZE + B_SIZE
    STAYING = STAGES * STAGE  # where filters lie that stay
    LEAVING = STAYING + RESIDENT * B_SIZE  # where slabs lie
    STAGE_BYTES, STAYING_BYTES = BYTES * STAGE, BYTES * RESIDENT * B_SIZE
    SHARED_BYTES = BYTES * (LEAVING + CONSUMERS * 4 * SLABS * SLAB)
    PIECES, PIECE = BLOCK_K * BYTES // 16, 16 // BYTES  # of 16 bytes in a row, and values in one
    EIGHT_ROWS = 8 * BLOCK_K * BYTES  # what a pattern of the swizzle takes
    K_STEPS, STEP, BAND = BLOCK_K // MMA_K, MMA_K * BYTES >> 4, MMA_M * BLOCK_K * BYTES >> 4  # as descriptors count
    PARTS, PART = BLOCK_N // ROW, ROW // 2  # the sums of ROW columns are so many for each thread
    SUMS = PARTS * PART
    IN_REGISTERS = BLOCK_N == 256 and BANDS == 1  # A; with 128 columns it was slower
    SETS = 2 if IN_REGISTERS else 1  # of these registers: the unit reads one while the other is loaded
    HELD, FRAG = WARP_M * MMA_K // 32, WARP_M * BLOCK_K // 32  # values of A of a thread: of an instruction, a stage
    ACC, BAND_ROWS = BANDS * SUMS, BANDS * MMA_M
    PENDING = 0 if BANDS * PARTS % SLABS else SLABS - 1  # slabs that may be leaving: a tile begins with the first
    leave = clustered.leaving(kind.leave_part, ROW, PARTS, PENDING)

    @inlined
    def locate(tile, blocks_n):
        """Row and column of a tile; columns come first, so that x is still in L2."""
        return tile // blocks_n * int32(BLOCK_M), tile % blocks_n * int32(BLOCK_N)

    @inlined
    def swizzled(row, piece):
        """Where piece `piece`, 16 bytes, of a row of a tile lies."""
        return row * uint32(BLOCK_K) + (piece ^ row // uint32(8 // PIECES) % uint32(PIECES)) * uint32(PIECE)

    @inlined
    def load_fragments(frag, first, tiles, at):
        """The warp's 16 rows of a tile of x to frag[first] on; the lane's row begins at tiles[at], swizzled."""
        for k in range(K_STEPS):
            ldmatrix4(frag, first + HELD * k, tiles, at ^ uint32(k * MMA_K))

    @inlined
    def next_channels(c, column, t, r, s, C, R, S):
        """Channels and tap of the next stage, and where that tap begins in a filter."""
        c += int32(BLOCK_K)
        if c >= C:
            c, column, s = int32(0), column + C, s + int32(1)
            if s == S:
                s, r = int32(0), r + int32(1)
                if r == R:
                    r, t = int32(0), t + int32(1)
        return c, column, t, r, s

    @inlined
    def stay(tiles, filt_map, bars, steps, C):
        """Ask for all tiles of filters."""
        barrier_expect(bars, 0, STAYING_BYTES)
        at, column, c = uint32(STAYING), int32(0), int32(0)
        for _ in range(steps):
            tma_load2(tiles, at, filt_map, bars, 0, 0, column + c)
            at += uint32(B_SIZE)
            c += int32(BLOCK_K)
            if c >= C:
                c, column = int32(0), column + C

    @jit(THREADS)
    @unroll
    def hconv3d_im2col(x_map, filt_map, y_map, extents, filters, outputs, geometry):
        tiles = all_tiles()  # dynamic shared memory: a launch may ask for more than 48 KiB of it
        filled, emptied = barrier_array(STAGES), barrier_array(STAGES)
        stayed = barrier_array(1)
        acc = cuda.local.array(ACC, float32)
        frag = cuda.local.array(SETS * FRAG, value)
        GEMM_M, GEMM_N, C = int32(extents[0]), int32(extents[1]), int32(extents[2])
        T, R, S = int32(filters[0]), int32(filters[1]), int32(filters[2])
        blocks_n = (GEMM_N - int32(1)) // int32(BLOCK_N) + int32(1)
        turns = ((GEMM_M - int32(1)) // int32(BLOCK_M) + int32(1)) * blocks_n
        steps = T * R * S * ((C - int32(1)) // int32(BLOCK_K) + int32(1))
        thread = uint32(cuda.threadIdx.x)
        warpgroup = thread // uint32(128)
        first, blocks = int32(cuda.blockIdx.x), int32(cuda.gridDim.x)
        if thread == 0:
            for s in range(STAGES):
                barrier_init(filled, s, 1)
                barrier_init(emptied, s, CONSUMERS * 4)
            barrier_init(stayed, 0, 1)
            publish_barriers()
        cuda.syncthreads()

        stage, parity = uint32(0), uint32(0)
        if warpgroup == uint32(CONSUMERS):
            # stage: one thread, whenever a stage is empty
            give_registers(FEW)
            if thread == uint32(CONSUMERS * 128):
                O, P, Q = int32(outputs[0]), int32(outputs[1]), int32(outputs[2])
                if RESIDENT > 0:
                    stay(tiles, filt_map, stayed, steps, C)
                for tile in range(first, turns, blocks):
                    m0, n0 = locate(tile, blocks_n)
                    n = m0 // (O * P * Q)
                    d = m0 // (P * Q) % O * int32(geometry.stride_d) - int32(geometry.pad_d)
                    h = m0 // Q % P * int32(geometry.stride_h) - int32(geometry.pad_h)
                    w = m0 % Q * int32(geometry.stride_w) - int32(geometry.pad_w)
                    t, r, s, c, column = int32(0), int32(0), int32(0), int32(0), int32(0)
                    for _ in range(steps):
                        barrier_wait(emptied, stage, parity ^ uint32(1))  # the first STAGES waits pass at once
                        barrier_expect(filled, stage, STAGE_BYTES)
                        at = stage * uint32(STAGE)
                        tma_load_im2col(
                            tiles, at, x_map, filled, stage, n, d, h, w, c, t * int32(geometry.dilation_d),
                            r * int32(geometry.dilation_h), s * int32(geometry.dilation_w),
                        )  # fmt: skip
                        if RESIDENT == 0:
                            tma_load2(tiles, at + uint32(A_SIZE), filt_map, filled, stage, n0, column + c)
                        stage += uint32(1)
                        if stage == uint32(STAGES):
                            stage, parity = uint32(0), parity ^ uint32(1)
                        c, column, t, r, s = next_channels(c, column, t, r, s, C, R, S)
        else:
            take_registers(MANY)
            # locate: the first tiles, of x from the warpgroup's rows on; the lane's row; where the warp's sums leave
            a_at = descriptor(tiles, warpgroup * uint32(BAND_ROWS * BLOCK_K), 0, EIGHT_ROWS)
            b_at = descriptor(tiles, STAYING if RESIDENT > 0 else A_SIZE, 0, EIGHT_ROWS)
            warp, lane = thread // uint32(32), thread % uint32(32)
            row = warpgroup * uint32(BAND_ROWS) + warp % uint32(4) * uint32(WARP_M)
            lane_at = swizzled(row + lane % uint32(16), lane // uint32(16))
            own = uint32(LEAVING) + warp * uint32(SLABS * SLAB)
            if RESIDENT > 0:
                barrier_wait(stayed, 0, 0)
            for tile in range(first, turns, blocks):
                m0, n0 = locate(tile, blocks_n)
                for j in range(ACC):
                    acc[j] = float32(0.0)
                before = stage
                for begin in range(0, steps, SETS):
                    for s in unrolled(SETS):
                        if SETS == 1 or begin + s < steps:
                            barrier_wait(filled, stage, parity)
                            if IN_REGISTERS:
                                load_fragments(frag, s * FRAG, tiles, lane_at + stage * uint32(STAGE))

                            # multiply: started here; the one before it has ended, and its stage may be filled again
                            a = a_at + uint64(stage * uint32(STAGE_BYTES >> 4))
                            b = b_at + uint64(stage * uint32(STAGE_BYTES >> 4))
                            if RESIDENT > 0:
                                b = b_at + uint64(uint32(begin + s) * uint32(B_SIZE * BYTES >> 4))
                            wgmma_fence()
                            for k in unrolled(K_STEPS):
                                b_k = b + uint64(k * STEP)
                                if IN_REGISTERS:
                                    wgmma_registers(acc, 0, frag, s * FRAG + HELD * k, tiles, b_k, BLOCK_N)
                                else:
                                    for band in unrolled(BANDS):
                                        a_k = a + uint64(band * BAND + k * STEP)
                                        wgmma(acc, band * SUMS, tiles, a_k, b_k, BLOCK_N)
                            wgmma_commit()
                            wgmma_wait(1)
                            cuda.syncwarp()  # threads may have read x: each warp says that a stage is empty
                            if lane == 0 and begin + s > 0:
                                barrier_arrive(emptied, before)
                            before = stage
                            stage += uint32(1)
                            if stage == uint32(STAGES):
                                stage, parity = uint32(0), parity ^ uint32(1)
                wgmma_wait(0)
                cuda.syncwarp()
                if lane == 0:
                    barrier_arrive(emptied, before)

                # store
                for band in unrolled(BANDS):
                    leave(y_map, m0, row, n0, tiles, own, acc, band, lane)
            if lane == 0:
                tma_wait_read(0)

    return hconv3d_im2col, THREADS, SHARED_BYTES


def corners(geometry, taps):
    """Padding, strides and reach of the taps, each of (d, h, w)."""
    pads, strides, dilations = (
        [getattr(geometry, f"{name}_{axis}") for axis in "dhw"] for name in ("pad", "stride", "dilation")
    )
    return pads, strides, [(count - 1) * dilation for count, dilation in zip(taps, dilations, strict=True)]


def describable(x, filt, y, geometry):
    """Whether the copy engine can walk along these windows."""
    pads, strides, reach = corners(geometry, filt.shape[1:4])
    upper = [pad - far for pad, far in zip(pads, reach, strict=True)]
    within = max(pads) <= 16 and max(reach) < 32 and max(strides) <= 8 and min(upper) >= -16 and max(upper) <= 15
    return within and aligned(x, filt, y)


def convolve(x, filt, y, geometry, kind=FP16, **tile):
    """Launch the kernel, with the planned tile but for what `tile` says."""
    N, O, P, Q, K = y.shape
    T, R, S, C = filt.shape[1:]
    pads, strides, reach = corners(geometry, (T, R, S))
    upper = [pad - far for pad, far in zip(pads, reach, strict=True)]
    GEMM_M = N * O * P * Q
    tile = {**plan(GEMM_M, C, K, T * R * S, kind), **tile}
    BLOCK_M, BLOCK_N, BLOCK_K = tile["BLOCK_M"], tile["BLOCK_N"], tile["BLOCK_K"]
    if BLOCK_N < K:  # not all filters would stay
        tile["RESIDENT"] = 0
    x_map = MAPS.im2col(x, [-pad for pad in pads], upper, BLOCK_K, BLOCK_M, strides, tf32=kind.tf32)
    filt_map = MAPS.tiled(filt.reshape(K, T * R * S * C), (BLOCK_N, BLOCK_K), tf32=kind.tf32)
    y_map = MAPS.tiled(y.reshape(GEMM_M, K), (WARP_M, kind.row))
    kernel, threads, shared_bytes = specialise(**tile, kind=kind)
    tiles = -(-GEMM_M // BLOCK_M) * -(-K // BLOCK_N)
    turns = -(-tiles // multiprocessors())
    blocks = -(-tiles // turns)  # no more than it takes to be done as early
    kernel[blocks, threads, 0, shared_bytes](x_map, filt_map, y_map, (GEMM_M, K, C), (T, R, S), (O, P, Q), geometry)


def prepare(filt, problem):
    """The filter, and the table that the other step needs where the copy engine cannot describe the arrays."""
    return unaligned.prepare(filt, problem)


def launch(x, prepared, y, geometry, **tile):
    filt, _ = prepared
    if not describable(x, filt, y, geometry):
        return unaligned.launch(x, prepared, y, geometry)
    few = None if tile else few_filters.plan(y.shape, filt.shape, geometry)
    if few:
        return few_filters.launch(x, filt, y, geometry, few)
    convolve(x, filt, y, geometry, **tile)
