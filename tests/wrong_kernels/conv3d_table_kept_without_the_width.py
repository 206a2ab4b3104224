"""A table of offsets of taps is kept by filter, dilation and channels; the width of the image is in it, too.

Class: state
Refute: {"shape": "N=1 C=2 D=2 H=6 W=3 K=1 T=1 R=2 S=2", "then": ["N=1 C=2 D=2 H=3 W=6 K=1 T=1 R=2 S=2"]}
"""

from functools import lru_cache

import numpy as np
from numba import cuda, float32

THREADS_X, THREADS_Y = 32, 8
WIDTHS = {}


@lru_cache
def table(C, T, R, S, dilation_d, dilation_h, dilation_w, plane):
    W = WIDTHS["W"]
    t, r, s = (index.reshape(-1) for index in np.indices((T, R, S)))
    return cuda.to_device((t * dilation_d * plane + r * dilation_h * W + s * dilation_w) * C)


@cuda.jit
def correlate(x, filt, offsets, y, geometry, shape):
    N, D, H, W, C = shape
    K, T, R, S, _ = filt.shape
    _, O, P, Q, _ = y.shape
    row = cuda.blockIdx.x * THREADS_Y + cuda.threadIdx.y
    k = cuda.blockIdx.y * THREADS_X + cuda.threadIdx.x
    n, o, p, q = row // (O * P * Q), row // (P * Q) % O, row // Q % P, row % Q
    if n < N and k < K:
        d0 = o * geometry.stride_d - geometry.pad_d
        h0 = p * geometry.stride_h - geometry.pad_h
        w0 = q * geometry.stride_w - geometry.pad_w
        start = (((n * D + d0) * H + h0) * W + w0) * C
        acc = float32(0.0)
        for t in range(T):
            for r in range(R):
                for s in range(S):
                    d, h = d0 + t * geometry.dilation_d, h0 + r * geometry.dilation_h
                    w = w0 + s * geometry.dilation_w
                    if 0 <= d < D and 0 <= h < H and 0 <= w < W:
                        at = start + offsets[(t * R + r) * S + s]
                        for c in range(C):
                            acc += x[at + c] * filt[k, t, r, s, c]
        y[n, o, p, q, k] = acc


def launch(x, filt, y, geometry):
    N, O, P, Q, K = y.shape
    _, _, H, W, C = x.shape
    WIDTHS["W"] = W
    T, R, S = filt.shape[1:4]
    g = geometry
    offsets = table(C, T, R, S, g.dilation_d, g.dilation_h, g.dilation_w, H * W)
    grid = (-(-N * O * P * Q // THREADS_Y), -(-K // THREADS_X))
    correlate[grid, (THREADS_X, THREADS_Y)](x.reshape(x.size), filt, offsets, y, geometry, x.shape)
