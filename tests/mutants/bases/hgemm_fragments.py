"""A warp has 16 x 8 elements of C on tensor cores."""

from numba import cuda, float32
from numba.types import float16

from lessons.toolkit.mma import mma_m16n8k16


@cuda.jit
def product(a, b, c):
    a_frag = cuda.local.array(8, float16)
    b_frag = cuda.local.array(4, float16)
    acc = cuda.local.array(4, float32)
    M, N = c.shape
    K = a.shape[1]
    group, member = cuda.threadIdx.x // 4, cuda.threadIdx.x % 4
    m0, n0 = cuda.blockIdx.x * 16, cuda.blockIdx.y * 8
    for i in range(4):
        acc[i] = float32(0.0)
    for k0 in range(0, K, 16):
        for i in range(8):
            m, k = m0 + group + i // 2 % 2 * 8, k0 + 2 * member + i % 2 + i // 4 * 8
            a_frag[i] = a[m, k] if m < M and k < K else float16(0.0)
        for i in range(4):
            k, n = k0 + 2 * member + i % 2 + i // 2 * 8, n0 + group
            b_frag[i] = b[k, n] if k < K and n < N else float16(0.0)
        mma_m16n8k16(acc, 0, a_frag, 0, b_frag, 0)
    for i in range(4):
        m, n = m0 + group + i // 2 * 8, n0 + 2 * member + i % 2
        if m < M and n < N:
            c[m, n] = float16(acc[i])


def launch(a, b, c):
    M, N = c.shape
    product[(-(-M // 16), -(-N // 8)), 32](a, b, c)
