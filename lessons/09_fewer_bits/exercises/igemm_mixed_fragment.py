"""Exercise 09.2, find the bug: a fragment in another order.

A warp multiplies 16 x 32 of A by 32 x 8 of B, straight from global memory, in lesson 06's helpers/one_warp.py. Of A a
lane holds four registers of four values each; group = lane // 4, member = lane % 4. One of the two fragments has its
registers in another order than the instruction: the docstring of mma_m16n8k32_s8, in lessons/toolkit/mma.py, says
what a lane holds of each. Change one line.
Grade: python -m common grade 09.2
"""

import importlib

from numba import int8, int32

from lessons.toolkit.mma import mma_m16n8k32_s8
from lessons.toolkit.pasted import pasted

one_warp = importlib.import_module("lessons.06_tensor_cores.helpers.one_warp")

REQUIRES = "8.0"


@pasted
def load(a_frag, b_frag, a, b, m0, n0, k0, group, member):
    M, K, N = a.shape[0], a.shape[1], b.shape[1]
    for i in range(16):
        m, k = m0 + group + i // 8 * 8, k0 + 4 * member + i % 4 + i // 4 % 2 * 16
        a_frag[i] = a[m, k] if m < M and k < K else int8(0)
    for i in range(8):
        k, n = k0 + 4 * member + i % 4 + i // 4 * 16, n0 + group
        b_frag[i] = b[k, n] if k < K and n < N else int8(0)


launch = one_warp.specialise(mma_m16n8k32_s8, int8, int32, int32, load=load)
