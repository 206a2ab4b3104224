"""bfgemm_mma: bfloat16, the upper half of float32: the kernel of igemm_mma, with values of another kind.

Previous step: none
Builds on: igemm_mma
New idea: bfloat16 has float32's sign and exponent, and seven bits of its fraction. NumPy and Numba have no such type;
    an array of them is one of codes, uint16. To copies, swizzle and `ldmatrix` they are bytes, and 32 bytes along k
    are an instruction's depth in either case. One instruction rounds two sums and packs their codes into a word.
Loads per FMA: a warp reads (WARP_M + WARP_N) / (WARP_M * WARP_N) = 0.03 shared values, as in hgemm_pipelined.
Run: python -m lessons.09_fewer_bits bfgemm_mma
"""

import importlib

import numpy as np
from numba import cuda, float32, uint16

from lessons.toolkit.memory import store2_bfloat
from lessons.toolkit.mma import mma_m16n8k16_bf16
from lessons.toolkit.unroll import inlined

in_bytes = importlib.import_module("lessons.09_fewer_bits.igemm_mma")

REQUIRES = "8.0"


@inlined
def store_pair(c, m, n, acc, i, paired, operands):
    """c[m, n:n+2] = the codes of acc[i:i+2], nothing outside; one by one unless rows are even (`paired`)."""
    M, N = c.shape
    if m < M:
        if paired and n < N:
            store2_bfloat(c, m * N + n, acc, i)
        else:
            pair = cuda.local.array(2, uint16)
            store2_bfloat(pair, 0, acc, i)
            if n < N:
                c[m, n] = pair[0]
            if n + 1 < N:
                c[m, n + 1] = pair[1]


BF16 = in_bytes.Kind(float32, in_bytes.multiplying(mma_m16n8k16_bf16, 16, 8), store_pair)

prepare = in_bytes.prepare  # the transpose of B


def launch(a, b_t, c):
    in_bytes.multiply(a.view(np.int8), b_t.view(np.int8), c, BF16)
