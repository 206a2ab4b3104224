"""The image is copied into a workspace with a border, and nobody writes the border.

Class: zero
Refute: {
     "shape": "N=1 C=2 D=2 H=3 W=4 K=2 T=2 R=2 S=2 pad_h=1 pad_w=1",
     "poison": true,
     "ordinary": "N=1 C=2 D=2 H=3 W=4 K=2 T=2 R=2 S=2"
    }
"""

import numpy as np
from numba import cuda, float32

THREADS = 128


@cuda.jit
def frame(x, framed, pad_d, pad_h, pad_w):
    N, D, H, W, C = x.shape
    i = cuda.grid(1)
    if i < x.size:
        c, w, h, d, n = i % C, i // C % W, i // (C * W) % H, i // (C * W * H) % D, i // (C * W * H * D)
        framed[n, d + pad_d, h + pad_h, w + pad_w, c] = x[n, d, h, w, c]


@cuda.jit
def correlate(framed, filt, y, geometry):
    K, T, R, S, C = filt.shape
    _, O, P, Q, _ = y.shape
    i = cuda.grid(1)
    if i < y.size:
        k, q, p = i % K, i // K % Q, i // (K * Q) % P
        o, n = i // (K * Q * P) % O, i // (K * Q * P * O)
        acc = float32(0.0)
        for t in range(T):
            d = o * geometry.stride_d + t * geometry.dilation_d
            for r in range(R):
                h = p * geometry.stride_h + r * geometry.dilation_h
                for s in range(S):
                    w = q * geometry.stride_w + s * geometry.dilation_w
                    for c in range(C):
                        acc += framed[n, d, h, w, c] * filt[k, t, r, s, c]
        y[n, o, p, q, k] = acc


def workspace(problem):
    p = problem
    extents = (p.D + 2 * p.pad_d, p.H + 2 * p.pad_h, p.W + 2 * p.pad_w)
    return cuda.device_array((p.N, *extents, p.C), np.float32)


def launch(x, filt, y, geometry, framed):
    pads = geometry.pad_d, geometry.pad_h, geometry.pad_w
    frame[-(-x.size // THREADS), THREADS](x, framed, *pads)
    correlate[-(-y.size // THREADS), THREADS](framed, filt, y, geometry)
