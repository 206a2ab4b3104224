"""hconv3d_im2col: lesson 05's iterator has become hardware: the copy engine itself walks along the windows.

Previous step: hconv3d_mma
New idea: a tensor map of the kind "im2col" knows the image, its padding and stride. One request names the first
    pixel of a tile and a tap; the engine finds the pixels that follow, past the ends of rows and images, and writes
    zeros where a window hangs over the edge. No table, no mask, no thread that works out an address. What multiplies
    is hgemm_clustered without its clusters: multicast of filters gained nothing here. Tiles differ with the layer
    (helpers/im2col_plan.py); where filters are few, all of them stay in shared memory. Few filters on a large layer:
    a kernel of its own (helpers/few_filters.py) makes pixels the columns, and lets the taps of a row share pixels.
Loads per FMA: (BLOCK_M + BLOCK_N) / (BLOCK_M * BLOCK_N) values from L2, none by threads;
    with few filters about 1 / (S * K).
Where the copy engine cannot describe the arrays (rows of x, filt or y no multiple of 16 bytes, padding above 16,
    taps that reach more than 31 pixels, strides above 8), hconv3d_mma computes.
Run: python -m lessons.07_hopper hconv3d_im2col
"""

import importlib
from functools import lru_cache

from numba import cuda, float32, int32, uint32, uint64
from numba.types import float16

from lessons.toolkit import hopper
from lessons.toolkit.grid import jit
from lessons.toolkit.maps import Maps
from lessons.toolkit.mma import ldmatrix4
from lessons.toolkit.pasted import pasted
from lessons.toolkit.unroll import inlined, unroll, unrolled

unaligned = importlib.import_module("lessons.06_tensor_cores.hconv3d_mma")
clustered = importlib.import_module("lessons.07_hopper.hgemm_clustered")
register_operand = importlib.import_module("lessons.07_hopper.hgemm_register_operand")
planning = importlib.import_module("lessons.07_hopper.helpers.im2col_plan")
few_filters = importlib.import_module("lessons.07_hopper.helpers.few_filters")

REQUIRES = "9.0a"
TUNABLES = {"BLOCK_M": (128, 192, 256), "BLOCK_N": (64, 128, 256), "CONSUMERS": (2, 3)}

MMA_M, WARP_M = 64, 16  # rows of the tile that one instruction multiplies, and a warp's rows of its results
FEW, SLABS = planning.FEW, planning.SLABS
MAPS = Maps()
prepare = unaligned.prepare  # the filter, and the table that hconv3d_mma needs
FP16 = planning.Kind(
    2, 16, float16, hopper.half_tiles, hopper.wgmma_f16, hopper.wgmma_f16_registers, clustered.leave_part, tf32=False
)


def shipped(problem, kind=FP16):
    """The tile that the problem runs with unless another is asked for."""
    taps = problem.T * problem.R * problem.S
    return planning.plan(kind, problem.N * problem.O * problem.P * problem.Q, problem.C, problem.K, taps)


@pasted
def release(emptied, stage, lane):
    """Each warp tells the producer that a stage is empty: its threads may have read x themselves."""
    if lane == 0:
        hopper.barrier_arrive(emptied, stage)


@lru_cache
def specialise(BLOCK_M, BLOCK_N, BLOCK_K, CONSUMERS, RESIDENT, kind=FP16):
    """Build the kernel; RESIDENT: all the tiles of filters there are, which stay in shared memory; 0: they travel."""
    BYTES, MMA_K, value, all_tiles, wgmma, wgmma_registers, leave_part, _ = kind
    STAGES, THREADS, MANY, A_SIZE, B_SIZE, STAGE, STAYING, LEAVING, TOTAL = planning.layout(
        kind, BLOCK_M, BLOCK_N, BLOCK_K, CONSUMERS, RESIDENT
    )
    BANDS = BLOCK_M // CONSUMERS // MMA_M  # instructions that tile a consumer's rows
    BAND_ROWS, STAGE_BYTES = BANDS * MMA_M, BYTES * STAGE
    ROW, SLAB = kind.row, WARP_M * kind.row
    PIECES, PIECE = BLOCK_K * BYTES // 16, 16 // BYTES  # of 16 bytes in a row, and values in one
    EIGHT_ROWS = 8 * BLOCK_K * BYTES  # what a pattern of the swizzle takes
    K_STEPS, STEP, BAND = BLOCK_K // MMA_K, MMA_K * BYTES >> 4, MMA_M * BLOCK_K * BYTES >> 4  # as descriptors count
    PARTS, SUMS = BLOCK_N // ROW, BLOCK_N // 2  # boxes that a row of results leaves in; sums of a thread
    ACC = BANDS * SUMS
    IN_REGISTERS = BLOCK_N == 256 and BANDS == 1  # A; with 128 columns it was slower
    SETS = 2 if IN_REGISTERS else 1  # of these registers: the unit reads one while the other is loaded
    HELD, FRAG = WARP_M * MMA_K // 32, WARP_M * BLOCK_K // 32  # values of A of a thread: of an instruction, a stage
    PENDING = 0 if BANDS * PARTS % SLABS else SLABS - 1  # slabs that may be leaving: a tile begins with the first
    leave = clustered.leaving(leave_part, ROW, PARTS, PENDING)

    @inlined
    def locate(tile, blocks_n):
        """Row and column of a tile; columns come first, so that x is still in L2."""
        return tile // blocks_n * BLOCK_M, tile % blocks_n * BLOCK_N

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
        c += BLOCK_K
        if c >= C:
            c, column, s = 0, column + C, s + 1
            if s == S:
                s, r = 0, r + 1
                if r == R:
                    r, t = 0, t + 1
        return c, column, t, r, s

    @inlined
    def stay(tiles, filt_map, bars, steps, C):
        """Ask for all tiles of filters."""
        hopper.barrier_expect(bars, 0, BYTES * RESIDENT * B_SIZE)
        at, column, c = uint32(STAYING), 0, 0
        for _ in range(steps):
            hopper.tma_load2(tiles, at, filt_map, bars, 0, 0, column + c)
            at += uint32(B_SIZE)
            c += BLOCK_K
            if c >= C:
                c, column = 0, column + C

    @pasted
    @unroll
    def start(acc, frag, s, tiles, stage, step, a_at, b_at):
        """Start a stage's products; a_at is where the lane's row of x begins, or a descriptor."""
        if IN_REGISTERS:
            load_fragments(frag, s * FRAG, tiles, a_at + stage * uint32(STAGE))
        a = a_at + uint64(stage * uint32(STAGE_BYTES >> 4))
        b = b_at + uint64(stage * uint32(STAGE_BYTES >> 4))
        if RESIDENT > 0:
            b = b_at + uint64(uint32(step) * uint32(B_SIZE * BYTES >> 4))
        hopper.wgmma_fence()
        for k in unrolled(K_STEPS):
            b_k = b + uint64(k * STEP)
            if IN_REGISTERS:
                wgmma_registers(acc, 0, frag, s * FRAG + HELD * k, tiles, b_k, BLOCK_N)
            else:
                for band in unrolled(BANDS):
                    wgmma(acc, band * SUMS, tiles, a + uint64(band * BAND + k * STEP), b_k, BLOCK_N)

    consume = register_operand.consuming(start, release, STAGES, SETS, hopper.next_stage)

    @jit(THREADS)
    @unroll
    def hconv3d_im2col(x_map, filt_map, y_map, extents, filters, outputs, geometry):
        tiles = all_tiles()  # dynamic shared memory: a launch may ask for more than 48 KiB of it
        filled, emptied = hopper.barrier_array(STAGES), hopper.barrier_array(STAGES)
        stayed = hopper.barrier_array(1)
        acc = cuda.local.array(ACC, float32)
        frag = cuda.local.array(SETS * FRAG, value)
        GEMM_M, GEMM_N, C = int32(extents[0]), int32(extents[1]), int32(extents[2])
        T, R, S = int32(filters[0]), int32(filters[1]), int32(filters[2])
        blocks_n = (GEMM_N - 1) // BLOCK_N + 1
        turns = ((GEMM_M - 1) // BLOCK_M + 1) * blocks_n
        steps = T * R * S * ((C - 1) // BLOCK_K + 1)
        thread = uint32(cuda.threadIdx.x)
        warpgroup = thread // uint32(128)
        first, blocks = int32(cuda.blockIdx.x), int32(cuda.gridDim.x)
        if thread == 0:
            hopper.open_stages(filled, emptied, STAGES, CONSUMERS * 4)
            hopper.barrier_init(stayed, 0, 1)
            hopper.publish_barriers()
        cuda.syncthreads()

        stage, parity = uint32(0), uint32(0)
        if warpgroup == uint32(CONSUMERS):
            # stage: one thread, whenever a stage is empty
            hopper.give_registers(FEW)
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
                    t, r, s, c, column = 0, 0, 0, 0, 0
                    for _ in range(steps):
                        hopper.barrier_wait(emptied, stage, parity ^ uint32(1))  # the first STAGES waits pass at once
                        hopper.barrier_expect(filled, stage, STAGE_BYTES)
                        at = stage * uint32(STAGE)
                        hopper.tma_load_im2col(
                            tiles, at, x_map, filled, stage, n, d, h, w, c, t * int32(geometry.dilation_d),
                            r * int32(geometry.dilation_h), s * int32(geometry.dilation_w),
                        )  # fmt: skip
                        if RESIDENT == 0:
                            hopper.tma_load2(tiles, at + uint32(A_SIZE), filt_map, filled, stage, n0, column + c)
                        stage, parity = hopper.next_stage(stage, parity, STAGES)
                        c, column, t, r, s = next_channels(c, column, t, r, s, C, R, S)
        else:
            hopper.take_registers(MANY)
            # locate: the first tiles, of x from the warpgroup's rows on; the lane's row; where the warp's sums leave
            b_at = hopper.descriptor(tiles, STAYING if RESIDENT > 0 else A_SIZE, 0, EIGHT_ROWS)
            warp, lane = thread // uint32(32), thread % uint32(32)
            row = warpgroup * uint32(BAND_ROWS) + warp % uint32(4) * uint32(WARP_M)
            if IN_REGISTERS:
                a_at = swizzled(row + lane % uint32(16), lane // uint32(16))
            else:
                a_at = hopper.descriptor(tiles, warpgroup * uint32(BAND_ROWS * BLOCK_K), 0, EIGHT_ROWS)
            own = uint32(LEAVING) + warp * uint32(SLABS * SLAB)
            if RESIDENT > 0:
                hopper.barrier_wait(stayed, 0, 0)
            for tile in range(first, turns, blocks):
                m0, n0 = locate(tile, blocks_n)
                for j in range(ACC):
                    acc[j] = float32(0.0)
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
    few = None if tile else few_filters.plan(y.shape, filt.shape, geometry)
    if few:
        return few_filters.launch(x, filt, y, geometry, few)
    convolve(x, filt, y, geometry, **tile)
