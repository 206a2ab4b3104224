"""A warp has 16 x 8 elements of C on tensor cores, of bfloat16; a second kernel rounds the sums."""

import numpy as np
from numba import cuda, float32, uint16

from lessons.toolkit.memory import store2_bfloat
from lessons.toolkit.mma import mma_m16n8k16_bf16


@cuda.jit
def product(a, b, sums):
    a_frag = cuda.local.array(8, uint16)
    b_frag = cuda.local.array(4, uint16)
    acc = cuda.local.array(4, float32)
    M, N = sums.shape
    K = a.shape[1]
    group, member = cuda.threadIdx.x // 4, cuda.threadIdx.x % 4
    m0, n0 = cuda.blockIdx.x * 16, cuda.blockIdx.y * 8
    for i in range(4):
        acc[i] = float32(0.0)
    for k0 in range(0, K, 16):
        for i in range(8):
            m, k = m0 + group + i // 2 % 2 * 8, k0 + 2 * member + i % 2 + i // 4 * 8
            a_frag[i] = a[m, k] if m < M and k < K else uint16(0)
        for i in range(4):
            k, n = k0 + 2 * member + i % 2 + i // 2 * 8, n0 + group
            b_frag[i] = b[k, n] if k < K and n < N else uint16(0)
        mma_m16n8k16_bf16(acc, 0, a_frag, 0, b_frag, 0)
    for i in range(4):
        m, n = m0 + group + i // 2 * 8, n0 + 2 * member + i % 2
        if m < M and n < N:
            sums[m, n] = acc[i]


@cuda.jit
def rounded(sums, halves, c):
    """halves: the sums as pairs of uint16, the upper half last."""
    acc = cuda.local.array(2, float32)
    pair = cuda.local.array(2, uint16)
    M, N = c.shape
    n, m = cuda.grid(2)
    if m < M and n < N:
        acc[0], acc[1] = sums[m, n], float32(0.0)
        store2_bfloat(pair, 0, acc, 0)
        c[m, n] = pair[0]


def workspace(problem):
    return cuda.device_array((problem.M, problem.N), np.float32)


def launch(a, b, c, room):
    M, N = c.shape
    product[(-(-M // 16), -(-N // 8)), 32](a, b, room)
    rounded[(-(-N // 16), -(-M // 8)), (16, 8)](room, room.view(np.uint16), c)
