"""Exercise 06.2, write: a fragment of B from columns.

One warp computes 16 x 8 of C, as in hgemm_mma. Here prepare has laid B out by columns: bt[n, k] is B's element in row
k, column n. A sum does not mind in which order its k come, if A and B agree. So of each row of A a lane takes four
neighbours, which one load of 64 bits could bring, and not two and two eight apart. Load the four values of B that
belong to them, as they lie in bt; what lies beyond K or N is zero. The docstring of mma_m16n8k16, in
lessons/toolkit/mma.py, says what a lane holds of A and of B.
Grade: python -m common grade 06.2
"""

import numpy as np
from numba import cuda, float32
from numba.types import float16

from lessons.toolkit.mma import mma_m16n8k16


@cuda.jit
def hgemm_column_fragment(a, bt, c):
    a_frag = cuda.local.array(8, float16)
    b_frag = cuda.local.array(4, float16)
    acc = cuda.local.array(4, float32)
    M, N = c.shape
    K = a.shape[1]

    # locate
    group, member = cuda.threadIdx.x // 4, cuda.threadIdx.x % 4
    m0, n0 = cuda.blockIdx.x * 16, cuda.blockIdx.y * 8

    for i in range(4):
        acc[i] = float32(0.0)
    for k0 in range(0, K, 16):
        # stage
        for i in range(8):
            m, k = m0 + group + i // 2 % 2 * 8, k0 + 4 * member + i % 2 + i // 4 * 2
            a_frag[i] = a[m, k] if m < M and k < K else float16(float32(0.0))
        # >>> your code: 3 lines
        # <<<

        # multiply
        mma_m16n8k16(acc, 0, a_frag, 0, b_frag, 0)

    # store
    for i in range(4):
        m, n = m0 + group + i // 2 * 8, n0 + 2 * member + i % 2
        if m < M and n < N:
            c[m, n] = float16(acc[i])


def prepare(b, problem):
    return cuda.to_device(np.ascontiguousarray(b.copy_to_host().T))


def launch(a, bt, c):
    M, N = c.shape
    hgemm_column_fragment[(-(-M // 16), -(-N // 8)), 32](a, bt, c)
