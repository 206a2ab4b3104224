"""A warp has 16 x 8 elements of C on tensor cores, of int8."""

from numba import cuda, int8, int32

from lessons.toolkit.mma import mma_m16n8k32_s8


@cuda.jit
def product(a, b, c):
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
        for i in range(16):
            m, k = m0 + group + i // 4 % 2 * 8, k0 + 4 * member + i % 4 + i // 8 * 16
            a_frag[i] = a[m, k] if m < M and k < K else int8(0)
        for i in range(8):
            k, n = k0 + 4 * member + i % 4 + i // 4 * 16, n0 + group
            b_frag[i] = b[k, n] if k < K and n < N else int8(0)
        mma_m16n8k32_s8(acc, 0, a_frag, 0, b_frag, 0)
    for i in range(4):
        m, n = m0 + group + i // 2 * 8, n0 + 2 * member + i % 2
        if m < M and n < N:
            c[m, n] = acc[i]


def launch(a, b, c):
    M, N = c.shape
    product[(-(-M // 16), -(-N // 8)), 32](a, b, c)
