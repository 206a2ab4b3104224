"""Exercise 06.7, write: fragments of TF32.

mma_m16n8k8 multiplies A (16 x 8) by B (8 x 8), float32 that counts as TF32. With group = lane // 4 and member =
lane % 4, a lane's four values of A are (group, member), the one eight rows below, and both again four columns to the
right; its two of B are (member, group) and the one four rows below. Load them, as precise as TF32 can be. What lies
outside is zero.
Grade: python -m common grade 06.7
"""

from numba import cuda, float32

from lessons.toolkit.mma import mma_m16n8k8, to_tf32

PRECISION = "tf32"


@cuda.jit
def gemm_tf32_fragments(a, b, c):
    a_frag = cuda.local.array(4, float32)
    b_frag = cuda.local.array(2, float32)
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
        # >>> your code: 6 lines
        # <<<

        # multiply
        mma_m16n8k8(acc, 0, a_frag, 0, b_frag, 0)

    # store
    for i in range(4):
        m, n = m0 + group + i // 2 * 8, n0 + 2 * member + i % 2
        if m < M and n < N:
            c[m, n] = acc[i]


def launch(a, b, c):
    M, N = c.shape
    gemm_tf32_fragments[(-(-M // 16), -(-N // 8)), 32](a, b, c)
