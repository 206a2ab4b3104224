"""Exercise 09.2, find the bug: a fragment in another order.

A warp multiplies 16 x 32 of A by 32 x 8 of B, straight from global memory. Of A a lane holds four registers, four
values each. One of the two fragments has its registers in another order than the instruction: the docstring of
mma_m16n8k32_s8, in lessons/toolkit/mma.py, says what a lane holds of each. Change one line.
Grade: python -m common grade 09.2
"""

from numba import cuda, int8, int32

from lessons.toolkit.mma import mma_m16n8k32_s8

REQUIRES = "8.0"


@cuda.jit
def igemm_mixed_fragment(a, b, c):
    a_frag = cuda.local.array(16, int8)
    b_frag = cuda.local.array(8, int8)
    acc = cuda.local.array(4, int32)
    M, N = c.shape
    K = a.shape[1]
    group, member = cuda.threadIdx.x // 4, cuda.threadIdx.x % 4
    m0, n0 = cuda.blockIdx.x * 16, cuda.blockIdx.y * 8
    for i in range(4):
        acc[i] = int32(0)
    for k0 in range(0, K, 32):
        # stage
        for i in range(16):
            m, k = m0 + group + i // 8 * 8, k0 + 4 * member + i % 4 + i // 4 % 2 * 16
            a_frag[i] = a[m, k] if m < M and k < K else int8(0)
        for i in range(8):
            k, n = k0 + 4 * member + i % 4 + i // 4 * 16, n0 + group
            b_frag[i] = b[k, n] if k < K and n < N else int8(0)

        # multiply
        mma_m16n8k32_s8(acc, 0, a_frag, 0, b_frag, 0)

    # store
    for i in range(4):
        m, n = m0 + group + i // 2 * 8, n0 + 2 * member + i % 2
        if m < M and n < N:
            c[m, n] = acc[i]


def launch(a, b, c):
    M, N = c.shape
    igemm_mixed_fragment[(-(-M // 16), -(-N // 8)), 32](a, b, c)
