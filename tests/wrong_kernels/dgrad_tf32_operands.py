"""Operands are cut to TF32, 10 bits of mantissa.

Expect: imprecise
Says: right on integers but not precise: .*times the float32 bound.*TF32
"""

import numpy as np
from numba import cuda, float32

THREADS_X = 8
THREADS_Y = 16
KEPT_BITS = ~0x1FFF  # float32 has 23 bits of mantissa, the lowest 13 go


@cuda.jit
def gradient(dy, filt, dx, geometry):
    N, D, H, W, C = dx.shape
    K, T, R, S, _ = filt.shape
    _, O, P, Q, _ = dy.shape
    gemm_m = cuda.blockIdx.x * THREADS_Y + cuda.threadIdx.y
    c = cuda.blockIdx.y * THREADS_X + cuda.threadIdx.x
    n = gemm_m // (D * H * W)
    d = gemm_m // (H * W) % D
    h = gemm_m // W % H
    w = gemm_m % W
    if n < N and c < C:
        acc = float32(0.0)
        for t in range(T):
            below_d = d + geometry.pad_d - t * geometry.dilation_d
            o = below_d // geometry.stride_d
            for r in range(R):
                below_h = h + geometry.pad_h - r * geometry.dilation_h
                p = below_h // geometry.stride_h
                for s in range(S):
                    below_w = w + geometry.pad_w - s * geometry.dilation_w
                    q = below_w // geometry.stride_w
                    met = (
                        o * geometry.stride_d == below_d
                        and p * geometry.stride_h == below_h
                        and q * geometry.stride_w == below_w
                    )
                    if met and 0 <= o < O and 0 <= p < P and 0 <= q < Q:
                        for k in range(K):
                            left = np.int32(dy[n, o, p, q, k].view(np.int32) & KEPT_BITS).view(np.float32)
                            right = np.int32(filt[k, t, r, s, c].view(np.int32) & KEPT_BITS).view(np.float32)
                            acc += left * right
        dx[n, d, h, w, c] = acc


def launch(dy, filt, dx, geometry):
    N, D, H, W, C = dx.shape
    grid = (-(-N * D * H * W // THREADS_Y), -(-C // THREADS_X))
    gradient[grid, (THREADS_X, THREADS_Y)](dy, filt, dx, geometry)
