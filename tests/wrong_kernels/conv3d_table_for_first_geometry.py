"""The offsets are worked out at the first call and kept, whatever comes after.

Class: state
Refute: {"shape": "N=1 C=2 D=1 H=4 W=4 K=1 T=1 R=2 S=2", "then": ["N=1 C=2 D=1 H=6 W=5 K=1 T=1 R=2 S=2 dilation_w=2"]}
"""

import numpy as np
from numba import cuda, float32

tables = []


@cuda.jit
def convolve(x, filt, y, g, table):
    N, D, H, W, C = x.shape
    K, T, R, S, _ = filt.shape
    _, O, P, Q, _ = y.shape
    i = cuda.grid(1)
    if i < y.size:
        k, q, p, o, n = i % K, i // K % Q, i // (K * Q) % P, i // (K * Q * P) % O, i // (K * Q * P * O)
        acc = float32(0.0)
        for j in range(T * R * S):
            d = o * g.stride_d - g.pad_d + table[j, 0]
            h = p * g.stride_h - g.pad_h + table[j, 1]
            w = q * g.stride_w - g.pad_w + table[j, 2]
            if 0 <= d < D and 0 <= h < H and 0 <= w < W:
                for c in range(C):
                    acc += x[n, d, h, w, c] * filt[k, j // (R * S), j // S % R, j % S, c]
        y[n, o, p, q, k] = acc


def workspace(problem):
    if not tables:
        g = problem.geometry
        tables.append(
            cuda.to_device(
                np.array(
                    [
                        (t * g.dilation_d, r * g.dilation_h, s * g.dilation_w)
                        for t in range(problem.T)
                        for r in range(problem.R)
                        for s in range(problem.S)
                    ],
                    np.int32,
                )
            )
        )
    return tables[0]


def launch(x, filt, y, geometry, table):
    convolve[-(-y.size // 128), 128](x, filt, y, geometry, table)
