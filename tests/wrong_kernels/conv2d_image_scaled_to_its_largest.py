"""Pixels are kept as 24-bit integers, scaled by the largest of all images.

Class: values
Refute: {"shape": "N=2 C=1 H=4 W=5 K=2 R=2 S=2", "inputs": "mixed"}
"""

import numpy as np
from numba import cuda, float32

THREADS = 128
BITS = 24


@cuda.jit
def largest_of(x, scale):
    found = float32(0.0)
    for i in range(x.size):
        found = max(found, abs(x[i]))
    scale[0] = found if found > float32(0.0) else float32(1.0)


@cuda.jit
def correlate(x, filt, y, scale):
    N, K, P, Q = y.shape
    _, C, R, S = filt.shape
    i = cuda.grid(1)
    if i < y.size:
        q, p, k, n = i % Q, i // Q % P, i // (P * Q) % K, i // (P * Q * K)
        unit = float(scale[0]) / (1 << BITS)
        acc = 0.0
        for c in range(C):
            for r in range(R):
                for s in range(S):
                    acc += round(x[n, c, p + r, q + s] / unit) * filt[k, c, r, s]
        y[n, k, p, q] = float32(acc * unit)


def workspace(problem):
    return cuda.device_array(1, np.float32)


def launch(x, filt, y, scale):
    largest_of[1, 1](x.reshape(x.size), scale)
    correlate[-(-y.size // THREADS), THREADS](x, filt, y, scale)
