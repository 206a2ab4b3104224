"""A warp has 16 x 8 elements of C on tensor cores, from TF32 operands."""

from numba import cuda, float32

from lessons.toolkit.mma import mma_m16n8k8, to_tf32

PRECISION = "tf32"


@cuda.jit
def product(a, b, c):
    a_frag = cuda.local.array(4, float32)
    b_frag = cuda.local.array(2, float32)
    acc = cuda.local.array(4, float32)
    M, N = c.shape
    K = a.shape[1]
    group, member = cuda.threadIdx.x // 4, cuda.threadIdx.x % 4
    m0, n0 = cuda.blockIdx.x * 16, cuda.blockIdx.y * 8
    for i in range(4):
        acc[i] = float32(0.0)
    for k0 in range(0, K, 8):
        for i in range(4):
            m, k = m0 + group + i % 2 * 8, k0 + member + i // 2 * 4
            a_frag[i] = to_tf32(a[m, k]) if m < M and k < K else float32(0.0)
        for i in range(2):
            k, n = k0 + member + i * 4, n0 + group
            b_frag[i] = to_tf32(b[k, n]) if k < K and n < N else float32(0.0)
        mma_m16n8k8(acc, 0, a_frag, 0, b_frag, 0)
    for i in range(4):
        m, n = m0 + group + i // 2 * 8, n0 + 2 * member + i % 2
        if m < M and n < N:
            c[m, n] = acc[i]


def launch(a, b, c):
    M, N = c.shape
    product[(-(-M // 16), -(-N // 8)), 32](a, b, c)
