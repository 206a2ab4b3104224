"""Exercise 06.7, write: fragments of TF32.

mma_m16n8k8 multiplies A (16 x 8) by B (8 x 8), float32 that counts as TF32. With group = lane // 4 and member =
lane % 4, a lane's four values of A are (group, member), the one eight rows below, and both again four columns to the
right; its two of B are (member, group) and the one four rows below. Load them for the warp's tile of C, from (m0, n0)
on, and k from k0 on, as precise as TF32 can be. What lies outside is zero. The kernel is in helpers/one_warp.py.
Grade: python -m common grade 06.7
"""

import importlib

from numba import float32

from lessons.toolkit.mma import mma_m16n8k8, to_tf32
from lessons.toolkit.pasted import pasted

one_warp = importlib.import_module("lessons.06_tensor_cores.helpers.one_warp")

PRECISION = "tf32"


@pasted
def load(a_frag, b_frag, a, b, m0, n0, k0, group, member):
    M, K, N = a.shape[0], a.shape[1], b.shape[1]
    # >>> your code: 6 lines
    # <<<


launch = one_warp.specialise(mma_m16n8k8, float32, float32, float32, load=load)
