"""Filters are prepared into rows padded to 4 channels, whose rest nobody writes.

Class: zero
Refute: {
     "shape": "N=1 C=3 D=1 H=3 W=4 K=2 T=1 R=2 S=2",
     "poison": true,
     "ordinary": "N=1 C=4 D=1 H=3 W=4 K=2 T=1 R=2 S=2"
    }
"""

import numpy as np
from numba import cuda, float32

WIDTH = 4
THREADS = 128


@cuda.jit
def pad(filt, padded):
    i = cuda.grid(1)
    C = filt.shape[4]
    if i < filt.size // C:
        K, T, R, S, _ = filt.shape
        for c in range(C):
            padded[i, c] = filt[i // (T * R * S), i // (R * S) % T, i // S % R, i % S, c]


@cuda.jit
def correlate(x, padded, y, geometry, T, R, S):
    N, D, H, W, C = x.shape
    _, O, P, Q, K = y.shape
    i = cuda.grid(1)
    if i < y.size:
        k, q, p = i % K, i // K % Q, i // (K * Q) % P
        o, n = i // (K * Q * P) % O, i // (K * Q * P * O)
        acc = float32(0.0)
        for tap in range(T * R * S):
            d = o * geometry.stride_d - geometry.pad_d + tap // (R * S) * geometry.dilation_d
            h = p * geometry.stride_h - geometry.pad_h + tap // S % R * geometry.dilation_h
            w = q * geometry.stride_w - geometry.pad_w + tap % S * geometry.dilation_w
            if 0 <= d < D and 0 <= h < H and 0 <= w < W:
                for c in range(padded.shape[1]):
                    acc += x[n, d, h, w, min(c, C - 1)] * padded[k * T * R * S + tap, c]
        y[n, o, p, q, k] = acc


def prepare(filt, problem):
    K, T, R, S, C = filt.shape
    padded = cuda.device_array((K * T * R * S, -(-C // WIDTH) * WIDTH), np.float32)
    pad[-(-padded.shape[0] // THREADS), THREADS](filt, padded)
    return padded, (T, R, S)


def launch(x, prepared, y, geometry):
    padded, taps = prepared
    correlate[-(-y.size // THREADS), THREADS](x, padded, y, geometry, *taps)
