"""fp8gemm_promoted: sums leave the matrix unit every 128 of k, and are added up with all 24 bits of float32.

Previous step: fp8gemm_wgmma
New idea: what the unit cuts off grows with the sum that it adds to. So the first instruction of a stage does not add,
    and what four have summed, 128 products, is added to the thread's own float32 sums. Registers for both, 2 x 128,
    are more than a consumer has: the stage's columns are multiplied in two halves, 128 sums and 64 parts.
Loads per FMA: as in fp8gemm_wgmma. What is added: one addition on the FP32 units for 128 products.
Run: python -m lessons.09_fewer_bits fp8gemm_promoted
"""

import importlib

from numba import cuda, float32, uint64

from lessons.toolkit import hopper
from lessons.toolkit.narrow import narrow
from lessons.toolkit.pasted import pasted
from lessons.toolkit.unroll import unroll, unrolled

eight_bits = importlib.import_module("lessons.09_fewer_bits.igemm_wgmma")
fp8gemm_wgmma = importlib.import_module("lessons.09_fewer_bits.fp8gemm_wgmma")
k_major = importlib.import_module("lessons.09_fewer_bits.helpers.k_major")

REQUIRES = "9.0a"
BLOCK_N, BLOCK_K, STAGES = eight_bits.BLOCK_N, eight_bits.BLOCK_K, eight_bits.STAGES
K_STEPS, K_STEP, STAGE_BYTES = eight_bits.K_STEPS, eight_bits.K_STEP, eight_bits.STAGE_BYTES
HALVES = 2  # of a stage's columns, one after the other
MMA_N = BLOCK_N // HALVES
PART = MMA_N // 2  # sums of a thread that the unit holds
N_STEP = MMA_N * BLOCK_K >> 4  # from one half's columns to the other's, as descriptors count

prepare, workspace = fp8gemm_wgmma.prepare, fp8gemm_wgmma.workspace


@pasted
def promote(acc, part, half):
    for j in range(PART):
        acc[half * PART + j] += part[j]


def consuming(promote):
    """Build a consumer's loop over the `steps` stages of a tile of C; it returns the next stage, and its parity."""

    @pasted
    @narrow
    @unroll
    def consume(acc, tiles, filled, emptied, stage, parity, steps, a_at, b_at, leads):
        part = cuda.local.array(PART, float32)
        for _ in range(steps):
            hopper.barrier_wait(filled, stage, parity)
            moved = uint64(stage * (STAGE_BYTES >> 4))
            for half in unrolled(HALVES):
                # multiply: the first instruction takes the place of what the parts held
                hopper.wgmma_fence()
                for k in unrolled(K_STEPS):
                    along = moved + k * K_STEP
                    a, b = a_at + along, b_at + along + half * N_STEP
                    hopper.wgmma_e4m3(part, 0, tiles, a, b, MMA_N, k > 0)
                hopper.wgmma_commit()
                hopper.wgmma_wait(0)
                if half == HALVES - 1 and leads:
                    hopper.barrier_arrive(emptied, stage)

                # promote: the parts become float32 sums
                promote(acc, part, half)
            stage, parity = hopper.next_stage(stage, parity, STAGES)
        return stage, parity

    return consume


PROMOTED = eight_bits.Kind(float32, hopper.float_tiles, consuming(promote))


def launch(a, b_t, c, room=None):
    eight_bits.product(k_major.padded(a, room), b_t, c, PROMOTED)
