"""Exercise 06.10, write: one warp, 32 x 16 of C, from a blank file.

Write kernel and launch, for any M, N and K: each block is a warp and computes 32 x 16 elements of C, two fragments of
A and two of B for each sixteen k, four products. No shared memory: at most 0.1 reads of global memory for each
multiply-add, as the source is written.
Grade: python -m common grade 06.10
"""

from numba import cuda, float32
from numba.types import float16

from lessons.toolkit.mma import mma_m16n8k16


# >>> your code: 31 lines
@cuda.jit
def hgemm_warp_tile(a, b, c):
    a_frag = cuda.local.array(16, float16)
    b_frag = cuda.local.array(8, float16)
    acc = cuda.local.array(16, float32)
    M, N = c.shape
    K = a.shape[1]
    group, member = cuda.threadIdx.x // 4, cuda.threadIdx.x % 4
    m0, n0 = cuda.blockIdx.x * 32, cuda.blockIdx.y * 16
    for i in range(16):
        acc[i] = float32(0.0)
    for k0 in range(0, K, 16):
        for i in range(16):
            m = m0 + group + i // 8 * 16 + i // 2 % 2 * 8
            k = k0 + 2 * member + i % 2 + i // 4 % 2 * 8
            a_frag[i] = a[m, k] if m < M and k < K else float16(float32(0.0))
        for i in range(8):
            k = k0 + 2 * member + i % 2 + i // 2 % 2 * 8
            n = n0 + group + i // 4 * 8
            b_frag[i] = b[k, n] if k < K and n < N else float16(float32(0.0))
        for i in range(2):
            for j in range(2):
                mma_m16n8k16(acc, i * 8 + j * 4, a_frag, i * 8, b_frag, j * 4)
    for i in range(16):
        m = m0 + group + i // 8 * 16 + i // 2 % 2 * 8
        n = n0 + 2 * member + i % 2 + i // 4 % 2 * 8
        if m < M and n < N:
            c[m, n] = float16(acc[i])


def launch(a, b, c):
    M, N = c.shape
    hgemm_warp_tile[(-(-M // 32), -(-N // 16)), 32](a, b, c)


# <<<
