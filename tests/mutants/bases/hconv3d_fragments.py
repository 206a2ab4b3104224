"""An implicit matrix product on tensor cores."""

import numpy as np
from numba import cuda, float32, int64
from numba.types import float16

from lessons.toolkit.mma import mma_m16n8k16


@cuda.jit
def convolution(x, filt, table, y, geometry):
    a_frag = cuda.local.array(8, float16)
    b_frag = cuda.local.array(4, float16)
    acc = cuda.local.array(4, float32)
    N, D, H, W, C = x.shape
    K, T, R, S, _ = filt.shape
    _, O, P, Q, _ = y.shape
    GEMM_M, GEMM_K = N * O * P * Q, T * R * S * C
    group, member = cuda.threadIdx.x // 4, cuda.threadIdx.x % 4
    m0, n0 = int64(cuda.blockIdx.x) * 16, cuda.blockIdx.y * 8
    for i in range(4):
        acc[i] = float32(0.0)
    for k0 in range(0, GEMM_K, 16):
        for i in range(8):
            m, k = m0 + group + i // 2 % 2 * 8, k0 + 2 * member + i % 2 + i // 4 * 8
            a_frag[i] = float16(0.0)
            if m < GEMM_M and k < GEMM_K:
                d = m // (P * Q) % O * geometry.stride_d - geometry.pad_d + table[k, 0]
                h = m // Q % P * geometry.stride_h - geometry.pad_h + table[k, 1]
                w = m % Q * geometry.stride_w - geometry.pad_w + table[k, 2]
                if 0 <= d < D and 0 <= h < H and 0 <= w < W:
                    a_frag[i] = x[m // (O * P * Q), d, h, w, table[k, 3]]
        for i in range(4):
            k, n = k0 + 2 * member + i % 2 + i // 2 * 8, n0 + group
            b_frag[i] = float16(0.0)
            if k < GEMM_K and n < K:
                b_frag[i] = filt[n, k // (C * S * R), k // (C * S) % R, k // C % S, k % C]
        mma_m16n8k16(acc, 0, a_frag, 0, b_frag, 0)
    for i in range(4):
        m, n = m0 + group + i // 2 * 8, n0 + 2 * member + i % 2
        if m < GEMM_M and n < K:
            y[m // (O * P * Q), m // (P * Q) % O, m // Q % P, m % Q, n] = float16(acc[i])


def prepare(filt, problem):
    g, C = problem.geometry, problem.C
    k = np.arange(problem.reduction)
    t, r, s = k // (C * problem.S * problem.R), k // (C * problem.S) % problem.R, k // C % problem.S
    table = np.stack([t * g.dilation_d, r * g.dilation_h, s * g.dilation_w, k % C], axis=1)
    return filt, cuda.to_device(np.ascontiguousarray(table))


def launch(x, prepared, y, geometry):
    filt, table = prepared
    blocks = -(-y.size // y.shape[4] // 16)
    for first in range(0, y.shape[4], 8 * 65535):
        last = min(first + 8 * 65535, y.shape[4])
        convolution[(blocks, -(-(last - first) // 8)), 32](x, filt[first:last], table, y[..., first:last], geometry)
