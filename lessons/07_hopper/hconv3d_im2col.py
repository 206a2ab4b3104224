"""hconv3d_im2col: lesson 05's iterator has become hardware: the copy engine itself walks along the windows.

Previous step: hconv3d_mma
Builds on: hgemm_register_operand
New idea: a tensor map of the kind "im2col" knows the image, its padding and stride. One request names the first pixel
    of a tile and a tap; the engine finds the pixels that follow and writes zeros where a window hangs over the edge.
    Few filters stay in shared memory, and on a large layer have a kernel of their own (helpers/few_filters.py).
Loads per FMA: (BLOCK_M + BLOCK_N) / (BLOCK_M * BLOCK_N) from L2, none by threads; few filters: 1 / (S * K), or less.
Where the copy engine cannot walk along the windows (im2col_plan.describable), hconv3d_mma computes.
Run: python -m lessons.07_hopper hconv3d_im2col
"""

import importlib
from functools import lru_cache

from numba import cuda, int32, uint32
from numba.types import float16

from lessons.toolkit import hopper
from lessons.toolkit.grid import jit
from lessons.toolkit.maps import Maps
from lessons.toolkit.narrow import narrow
from lessons.toolkit.unroll import inlined, unroll, unrolled

unaligned = importlib.import_module("lessons.06_tensor_cores.hconv3d_mma")
stores = importlib.import_module("lessons.07_hopper.hgemm_tma_stores")
multiplying = importlib.import_module("lessons.07_hopper.helpers.im2col_products")
planning = importlib.import_module("lessons.07_hopper.helpers.im2col_plan")
few_filters = importlib.import_module("lessons.07_hopper.helpers.few_filters")

REQUIRES = "9.0a"
TUNABLES = {"BLOCK_M": (128, 192, 256), "BLOCK_N": (64, 128, 256), "CONSUMERS": (2, 3)}
WARP_M, FEW, SLABS = stores.WARP_M, planning.FEW, stores.SLABS
MAPS = Maps()
prepare = unaligned.prepare  # the filter, and the table that hconv3d_mma needs
FP16 = planning.Kind(
    2, 16, float16, hopper.half_tiles, hopper.wgmma_f16, hopper.wgmma_f16_registers, stores.leave_part
)


def shipped(problem, kind=FP16):
    """The tile that the problem runs with unless another is asked for."""
    GEMM_M, taps = problem.N * problem.O * problem.P * problem.Q, problem.T * problem.R * problem.S
    return planning.plan(kind, GEMM_M, problem.C // kind.packed, problem.K, taps)


@lru_cache
def specialise(BLOCK_M, BLOCK_N, BLOCK_K, CONSUMERS, RESIDENT, kind=FP16):
    """Build the kernel; RESIDENT: all the tiles of filters there are, which stay in shared memory; 0: they travel."""
    BYTES, value, all_tiles, sum_type = kind.BYTES, kind.value, kind.all_tiles, kind.sum_type
    found = planning.layout(kind, BLOCK_M, BLOCK_N, BLOCK_K, CONSUMERS, RESIDENT)
    STAGES, THREADS, MANY, STAGE, STAYING, LEAVING, TOTAL = found  # where filters that stay begin, where slabs
    A_SIZE, STAGE_BYTES = BLOCK_M * BLOCK_K, BYTES * STAGE  # values of a tile of x, bytes of a stage
    BAND_ROWS = BLOCK_M // CONSUMERS  # rows of a consumer
    BANDS = BAND_ROWS // stores.MMA_M  # instructions that tile them
    SLAB, PARTS = WARP_M * kind.row, BLOCK_N // kind.row  # values of a slab; slabs that a row of results leaves in
    EIGHT_ROWS = 8 * BLOCK_K * BYTES  # what a pattern of the swizzle takes
    PENDING = 0 if BANDS * PARTS % SLABS else SLABS - 1  # slabs that may still leave; after an odd number, none
    stay = few_filters.staying(STAYING, BYTES * RESIDENT * BLOCK_N * BLOCK_K, BLOCK_N, BLOCK_K)
    leave = stores.leaving(kind.leave_part, kind.row, PARTS, PENDING)
    ACC, FRAG, rows_at, consume = multiplying.products(kind, STAGES, STAGE, BANDS, BLOCK_N, BLOCK_K, RESIDENT)

    @inlined
    @narrow
    def next_channels(c, column, t, r, s, C, R, S):
        """Channels and tap of the next stage, and where that tap begins in a filter."""
        c += BLOCK_K
        if c >= C:
            c, column, s = 0, column + C, s + 1
            if s == S:
                s, r = 0, r + 1
                if r == R:
                    r, t = 0, t + 1
        return c, column, t, r, s

    @jit(THREADS)
    @narrow
    @unroll
    def hconv3d_im2col(x_map, filt_map, y_map, extents, filters, outputs, geometry):
        tiles = all_tiles()  # dynamic shared memory: a launch may ask for more than 48 KiB of it
        filled, emptied, stayed = hopper.barrier_array(STAGES), hopper.barrier_array(STAGES), hopper.barrier_array(1)
        acc, frag = cuda.local.array(ACC, sum_type), cuda.local.array(FRAG, value)
        GEMM_M, GEMM_N, C = uint32(extents[0]), uint32(extents[1]), uint32(extents[2])
        T, R, S = uint32(filters[0]), uint32(filters[1]), uint32(filters[2])
        O, P, Q = uint32(outputs[0]), uint32(outputs[1]), uint32(outputs[2])
        blocks_n = (GEMM_N - 1) // BLOCK_N + 1  # of a row: columns come first, so that x is still in L2
        turns = cuda.blockIdx.x, ((GEMM_M - 1) // BLOCK_M + 1) * blocks_n, cuda.gridDim.x
        steps = int32(T * R * S * ((C - 1) // BLOCK_K + 1))
        thread, warpgroup = cuda.threadIdx.x, cuda.threadIdx.x // 128
        if thread == 0:
            hopper.open_stages(filled, emptied, STAGES, CONSUMERS * 4)
            hopper.barrier_init(stayed, 0, 1)
            hopper.publish_barriers()
        cuda.syncthreads()

        stage, parity = 0, 0
        if warpgroup == CONSUMERS:
            # stage: one thread, whenever a stage is empty
            hopper.give_registers(FEW)
            if thread == CONSUMERS * 128:
                if RESIDENT > 0:
                    stay(tiles, filt_map, stayed, steps, C)
                for tile in range(int32(turns[0]), int32(turns[1]), int32(turns[2])):
                    m0, n0 = tile // blocks_n * BLOCK_M, tile % blocks_n * BLOCK_N
                    n = m0 // (O * P * Q)
                    d = m0 // (P * Q) % O * geometry.stride_d - geometry.pad_d
                    h = m0 // Q % P * geometry.stride_h - geometry.pad_h
                    w = m0 % Q * geometry.stride_w - geometry.pad_w
                    t, r, s, c, column = 0, 0, 0, 0, 0
                    for _ in range(steps):
                        hopper.barrier_wait(emptied, stage, parity ^ 1)  # the first STAGES waits pass at once
                        hopper.barrier_expect(filled, stage, STAGE_BYTES)
                        at = stage * STAGE
                        hopper.tma_load_im2col(
                            tiles, at, x_map, filled, stage, n, d, h, w, c, t * geometry.dilation_d,
                            r * geometry.dilation_h, s * geometry.dilation_w,
                        )  # fmt: skip
                        if RESIDENT == 0:
                            hopper.tma_load2(tiles, at + A_SIZE, filt_map, filled, stage, n0, column + c)
                        stage, parity = hopper.next_stage(stage, parity, STAGES)
                        c, column, t, r, s = next_channels(c, column, t, r, s, C, R, S)
        else:
            hopper.take_registers(MANY)
            # locate: the first tiles, of x from the warpgroup's rows on; the lane's row; where the warp's sums leave
            b_at = hopper.descriptor(tiles, STAYING if RESIDENT > 0 else A_SIZE, 0, EIGHT_ROWS)
            warp, lane = thread // 32, thread % 32
            row = warpgroup * BAND_ROWS + warp % 4 * WARP_M
            a_at, own = rows_at(tiles, warpgroup, row, lane), LEAVING + warp * SLABS * SLAB
            if RESIDENT > 0:
                hopper.barrier_wait(stayed, 0, 0)
            for tile in range(int32(turns[0]), int32(turns[1]), int32(turns[2])):
                m0, n0 = tile // blocks_n * BLOCK_M, tile % blocks_n * BLOCK_N
                for j in range(ACC):
                    acc[j] = sum_type(0)
                stage, parity = consume(acc, frag, tiles, filled, emptied, stage, parity, steps, a_at, b_at, lane)

                # store
                for band in unrolled(BANDS):
                    leave(y_map, m0, row, n0, tiles, own, acc, band, lane)
            if lane == 0:
                hopper.tma_wait_read(0)

    return hconv3d_im2col, THREADS, BYTES * TOTAL


def convolve(x, filt, y, geometry, kind=FP16, **tile):
    """Launch the kernel, with the planned tile but for what `tile` says."""
    N, O, P, Q, K = y.shape
    T, R, S, C = filt.shape[1:]
    GEMM_M = N * O * P * Q
    tile = {**planning.plan(kind, GEMM_M, C, K, T * R * S), **tile}
    BLOCK_M, BLOCK_N, BLOCK_K = tile["BLOCK_M"], tile["BLOCK_N"], tile["BLOCK_K"]
    if BLOCK_N < K:  # not all filters would stay
        tile["RESIDENT"] = 0
    lower, upper, strides, _ = planning.corners(geometry, x.shape, y.shape, (T, R, S))
    x_map = MAPS.im2col(x, lower, upper, BLOCK_K, BLOCK_M, strides, tf32=kind.tf32)
    filt_map = MAPS.tiled(filt.reshape(K, T * R * S * C), (BLOCK_N, BLOCK_K), tf32=kind.tf32)
    y_map = MAPS.tiled(y.reshape(GEMM_M, K), (WARP_M, kind.row))
    kernel, threads, shared_bytes = specialise(**tile, kind=kind)
    blocks = hopper.persistent(-(-GEMM_M // BLOCK_M) * -(-K // BLOCK_N))
    kernel[blocks, threads, 0, shared_bytes](x_map, filt_map, y_map, (GEMM_M, K, C), (T, R, S), (O, P, Q), geometry)


def launch(x, prepared, y, geometry, **tile):
    filt, _ = prepared
    if not planning.describable(x, filt, y, geometry):
        return unaligned.launch(x, prepared, y, geometry)
    if not tile and (few := few_filters.plan(FP16, y.shape, filt.shape, geometry)):
        return few_filters.launch(x, filt, y, geometry, few, FP16)
    convolve(x, filt, y, geometry, **tile)
