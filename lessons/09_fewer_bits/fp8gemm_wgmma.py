"""fp8gemm_wgmma: floating point in 8 bits: the kernel of igemm_wgmma, with values of another kind.

Previous step: none
Builds on: igemm_wgmma
New idea: e4m3 has a sign, four bits of exponent and three of fraction: 2^-9 to 448. An array of them is one of codes,
    uint8. The instruction takes them as int8, K-major, and adds in float32 registers, but not with 24 bits: it brings
    32 products and the sum so far to the exponent of the largest, and cuts off what 14 bits do not hold. Where rows
    of A are not multiples of 16 bytes, they are copied, with zeros behind them, to a workspace first.
Loads per FMA: as in igemm_wgmma.
Run: python -m lessons.09_fewer_bits fp8gemm_wgmma
"""

import importlib

import numpy as np
from numba import cuda, float32

from lessons.toolkit import hopper

eight_bits = importlib.import_module("lessons.09_fewer_bits.igemm_wgmma")
k_major = importlib.import_module("lessons.09_fewer_bits.helpers.k_major")

REQUIRES = "9.0a"
E4M3 = eight_bits.Kind(float32, hopper.float_tiles, eight_bits.consuming(hopper.wgmma_e4m3))

prepare = eight_bits.prepare  # the transpose of B


def workspace(problem):
    """Room for A with rows of whole pieces of 16 bytes; None where they are."""
    if k_major.whole(problem.K) == problem.K:
        return None
    return cuda.device_array((problem.M, k_major.whole(problem.K)), np.uint8)


def launch(a, b_t, c, room=None):
    eight_bits.product(k_major.padded(a, room), b_t, c, E4M3)
