"""Exercise 07.11, write: three products for one.

One warp computes 16 x 8 of C, eight k at a time; a_frag and b_frag hold what lanes hold for mma_m16n8k8, in
float32. One product of them would be TF32, and this is checked as FP32 is. Split both into a high and a low part,
and add three products. The multiplier cuts off what TF32 does not take; to_tf32 rounds.
Grade: python -m common grade 07.11
"""

from numba import cuda, float32

from lessons.toolkit.mma import mma_m16n8k8, to_tf32


@cuda.jit
def gemm_tf32_split(a, b, c):
    a_frag = cuda.local.array(4, float32)
    b_frag = cuda.local.array(2, float32)
    a_high, a_low = cuda.local.array(4, float32), cuda.local.array(4, float32)
    b_high, b_low = cuda.local.array(2, float32), cuda.local.array(2, float32)
    acc = cuda.local.array(4, float32)
    M, N = c.shape
    K = a.shape[1]

    # locate
    group, member = cuda.threadIdx.x // 4, cuda.threadIdx.x % 4
    m0, n0 = cuda.blockIdx.x * 16, cuda.blockIdx.y * 8

    for i in range(4):
        acc[i] = float32(0.0)
    for k0 in range(0, K, 8):
        # stage
        for i in range(4):
            m, k = m0 + group + i % 2 * 8, k0 + member + i // 2 * 4
            a_frag[i] = a[m, k] if m < M and k < K else float32(0.0)
        for i in range(2):
            k, n = k0 + member + i * 4, n0 + group
            b_frag[i] = b[k, n] if k < K and n < N else float32(0.0)

        # multiply
        # >>> your code: 9 lines
        # <<<

    # store
    for i in range(4):
        m, n = m0 + group + i // 2 * 8, n0 + 2 * member + i % 2
        if m < M and n < N:
            c[m, n] = acc[i]


def launch(a, b, c):
    M, N = c.shape
    gemm_tf32_split[(-(-M // 16), -(-N // 8)), 32](a, b, c)
