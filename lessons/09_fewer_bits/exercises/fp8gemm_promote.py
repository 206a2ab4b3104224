"""Exercise 09.4, write: parts become sums.

A consumer of fp8gemm_promoted calls `promote` for each half of a stage's columns. `part` holds what the matrix unit
has summed for this one, PART values of each thread; `acc` the sums of one half, then of the other. Add the parts to
the sums where they belong.
Grade: python -m common grade 09.4
"""

import importlib

from numba import float32

from lessons.toolkit import hopper
from lessons.toolkit.pasted import pasted

eight_bits = importlib.import_module("lessons.09_fewer_bits.igemm_wgmma")
promoted = importlib.import_module("lessons.09_fewer_bits.fp8gemm_promoted")
k_major = importlib.import_module("lessons.09_fewer_bits.helpers.k_major")

REQUIRES = "9.0a"
PART = promoted.PART

prepare, workspace = promoted.prepare, promoted.workspace


@pasted
def promote(acc, part, half):
    pass
    # >>> your code: 2 lines
    # <<<


PROMOTED = eight_bits.Kind(float32, hopper.float_tiles, promoted.consuming(promote))


def launch(a, b_t, c, room=None):
    eight_bits.product(k_major.padded(a, room), b_t, c, PROMOTED)
