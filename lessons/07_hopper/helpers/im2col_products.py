"""How hconv3d_im2col multiplies: a consumer's rows of x come from shared memory, or through registers."""

import importlib

from numba import uint32

from lessons.toolkit import hopper
from lessons.toolkit.mma import ldmatrix4
from lessons.toolkit.narrow import narrow
from lessons.toolkit.pasted import pasted
from lessons.toolkit.unroll import unroll, unrolled

in_registers = importlib.import_module("lessons.07_hopper.hgemm_register_operand")
MMA_M, WARP_M = 64, 16  # rows of the tile that one instruction multiplies, and a warp's rows of its results


def products(kind, STAGES, STAGE, BANDS, BLOCK_N, BLOCK_K, RESIDENT):
    """For consumers of BANDS times 64 rows: a thread's sums and registers of x; where it begins to read; the loop."""
    BYTES, MMA_K, wgmma, wgmma_registers = kind.BYTES, kind.MMA_K, kind.wgmma, kind.wgmma_registers
    B_SIZE, STAGE_BYTES = BLOCK_N * BLOCK_K, BYTES * STAGE
    BAND_ROWS, SUMS = BANDS * MMA_M, BLOCK_N // 2  # sums of an instruction, of a thread
    PIECES, PIECE = BLOCK_K * BYTES // 16, 16 // BYTES  # of 16 bytes in a row, and values in one
    EIGHT_ROWS = 8 * BLOCK_K * BYTES  # what a pattern of the swizzle takes
    K_STEPS, STEP, BAND = BLOCK_K // MMA_K, MMA_K * BYTES >> 4, MMA_M * BLOCK_K * BYTES >> 4  # as descriptors count
    IN_REGISTERS = BLOCK_N == 256 and BANDS == 1  # A; with 128 columns it was slower
    SETS = 2 if IN_REGISTERS else 1  # of these registers: the unit reads one while the other is loaded
    HELD, FRAG = WARP_M * MMA_K // 32, WARP_M * BLOCK_K // 32  # values of A of a thread: of an instruction, a stage

    @pasted
    @narrow
    def lane_row(tiles, warpgroup, row, lane):
        own, piece = row + lane % 16, lane // 16  # 16 bytes of it, swizzled
        return own * BLOCK_K + (piece ^ own // (8 // PIECES) % PIECES) * PIECE

    @pasted
    @narrow
    def described(tiles, warpgroup, row, lane):  # it and lane_row take the same arguments
        return hopper.descriptor(tiles, warpgroup * (BAND_ROWS * BLOCK_K), 0, EIGHT_ROWS)

    @pasted
    @narrow
    @unroll
    def start(acc, frag, s, tiles, stage, step, a_at, b_at):
        """Start a stage's products; a_at: where the lane's row of x begins, or a descriptor; step: int32 or int64."""
        if IN_REGISTERS:
            for k in unrolled(K_STEPS):  # the warp's 16 rows of x, swizzled
                ldmatrix4(frag, s * FRAG + HELD * k, tiles, (a_at + stage * STAGE) ^ (k * MMA_K))
        moved = stage * (STAGE_BYTES >> 4)
        a, b = a_at + moved, b_at + (uint32(step) * (B_SIZE * BYTES >> 4) if RESIDENT > 0 else moved)
        hopper.wgmma_fence()
        for k in unrolled(K_STEPS):
            b_k = b + k * STEP
            if IN_REGISTERS:
                wgmma_registers(acc, 0, frag, s * FRAG + HELD * k, tiles, b_k, BLOCK_N)
            else:
                for band in unrolled(BANDS):
                    wgmma(acc, band * SUMS, tiles, a + band * BAND + k * STEP, b_k, BLOCK_N)

    consume = in_registers.consuming(start, STAGES, SETS)
    return BANDS * SUMS, SETS * FRAG, lane_row if IN_REGISTERS else described, consume
