"""bfgemm_wgmma: bfloat16 at Hopper's rate: the kernel of igemm_wgmma, with values of another kind.

Previous step: bfgemm_mma
Builds on: igemm_wgmma
New idea: none of the kernel's own. It counts bytes: a row of 128 holds 64 codes of bfloat16, and an instruction takes
    32 bytes along k, as of int8. So a `Kind` is all that bfloat16 needs: sums of float32, the instruction, and the
    store of bfgemm_mma. Of 16-bit values the unit would take B row-major, too; K-major it is one box of the copy
    engine, as in igemm_wgmma.
    Where rows of A are not multiples of 16 bytes, `launch` runs bfgemm_mma.
Loads per FMA: (BLOCK_M + BLOCK_N) / (BLOCK_M * BLOCK_N) values of two bytes from L2, none by threads.
Run: python -m lessons.09_fewer_bits bfgemm_wgmma
"""

import importlib

import numpy as np
from numba import float32

from lessons.toolkit import hopper
from lessons.toolkit.bfloat import wgmma_bf16
from lessons.toolkit.memory import aligned

in_bytes = importlib.import_module("lessons.09_fewer_bits.igemm_wgmma")
unaligned = importlib.import_module("lessons.09_fewer_bits.bfgemm_mma")

REQUIRES = "9.0a"
BF16 = in_bytes.Kind(float32, hopper.float_tiles, in_bytes.consuming(wgmma_bf16), unaligned.store_pair)

prepare = unaligned.prepare  # the transpose of B


def launch(a, b_t, c):
    if not aligned(a):
        return unaligned.launch(a, b_t, c)
    in_bytes.multiply(a.view(np.int8), b_t.view(np.int8), c, BF16)
