"""Exercise 09.4, write: parts become sums.

The loop of a consumer of fp8gemm_promoted. `part` holds what the matrix unit has summed for one half of columns,
PART values of each thread, once wgmma_wait(0) has passed. `acc` holds the sums of both halves, PART of one, then PART
of the other. Add the parts to the sums where they belong. The first instruction of the next half takes the place
of the parts.
Grade: python -m common grade 09.4
"""

import importlib

from numba import cuda, float32, uint32, uint64

from lessons.toolkit import hopper
from lessons.toolkit.pasted import pasted
from lessons.toolkit.unroll import unroll, unrolled

eight_bits = importlib.import_module("lessons.09_fewer_bits.igemm_wgmma")
promoted = importlib.import_module("lessons.09_fewer_bits.fp8gemm_promoted")
k_major = importlib.import_module("lessons.09_fewer_bits.helpers.k_major")

REQUIRES = "9.0a"
STAGES, STAGE, K_STEPS, K_STEP = promoted.STAGES, promoted.STAGE, promoted.K_STEPS, promoted.K_STEP
HALVES, MMA_N, PART, N_STEP = promoted.HALVES, promoted.MMA_N, promoted.PART, promoted.N_STEP

prepare, workspace = promoted.prepare, promoted.workspace


@pasted
@unroll
def consume(acc, tiles, filled, emptied, stage, parity, steps, a_at, b_at, leads):
    part = cuda.local.array(PART, float32)
    for _ in range(steps):
        hopper.barrier_wait(filled, stage, parity)
        moved = uint64(stage * uint32(STAGE >> 4))
        for half in unrolled(HALVES):
            # multiply
            hopper.wgmma_fence()
            for k in unrolled(K_STEPS):
                along = moved + uint64(k * K_STEP)
                hopper.wgmma_e4m3(part, 0, tiles, a_at + along, b_at + along + uint64(half * N_STEP), MMA_N, k > 0)
            hopper.wgmma_commit()
            hopper.wgmma_wait(0)
            if half == HALVES - 1 and leads:
                hopper.barrier_arrive(emptied, stage)

            # promote
            # >>> your code: 2 lines
            # <<<
        stage, parity = hopper.next_stage(stage, parity, STAGES)
    return stage, parity


PROMOTED = eight_bits.Kind(float32, hopper.float_tiles, consume)


def launch(a, b_t, c, room=None):
    eight_bits.multiply(k_major.padded(a, room), b_t, c, PROMOTED)
