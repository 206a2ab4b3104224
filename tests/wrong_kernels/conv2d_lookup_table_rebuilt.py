"""Offsets of the taps lie in a global array, rebuilt for every filter: compiled in once.

Class: gpu
Refute: {"shape": "N=1 C=1 H=4 W=5 K=2 R=2 S=2", "then": ["N=1 C=1 H=6 W=5 K=2 R=3 S=1"]}
"""

import numpy as np
from numba import cuda, float32

THREADS = 128
OFFSETS = np.zeros(64, np.int64)


@cuda.jit
def correlate(x, filt, y):
    N, K, P, Q = y.shape
    _, C, R, S = filt.shape
    i = cuda.grid(1)
    if i < y.size:
        q, p, k, n = i % Q, i // Q % P, i // (P * Q) % K, i // (P * Q * K)
        acc = float32(0.0)
        for c in range(C):
            for r in range(R):
                for s in range(S):
                    offset = OFFSETS[r * S + s]
                    acc += x[n, c, p + offset // 8, q + offset % 8] * filt[k, c, r, s]
        y[n, k, p, q] = acc


def launch(x, filt, y):
    R, S = filt.shape[2:]
    if R > 8 or S > 8:
        raise ValueError(f"{R=} {S=}: filters have up to 8 x 8 taps")
    for i in range(R * S):
        OFFSETS[i] = i // S * 8 + i % S
    correlate[-(-y.size // THREADS), THREADS](x, filt, y)
