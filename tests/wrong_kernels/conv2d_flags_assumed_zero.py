"""Flags say which rows are staged; they are 8-bit integers in a workspace that is taken to start as zeros.

Class: zero
Refute: {"shape": "N=1 C=2 H=4 W=5 K=2 R=2 S=2", "poison": true}
"""

import numpy as np
from numba import cuda, float32

THREADS = 128


@cuda.jit
def stage(x, staged, flags):
    i = cuda.grid(1)
    if i < x.size and flags[i] == 0:
        staged[i] = x[i]


@cuda.jit
def correlate(staged, filt, y, H, W):
    N, K, P, Q = y.shape
    _, C, R, S = filt.shape
    i = cuda.grid(1)
    if i < y.size:
        q, p, k, n = i % Q, i // Q % P, i // (P * Q) % K, i // (P * Q * K)
        acc = float32(0.0)
        for c in range(C):
            for r in range(R):
                for s in range(S):
                    acc += staged[((n * C + c) * H + p + r) * W + q + s] * filt[k, c, r, s]
        y[n, k, p, q] = acc


def workspace(problem):
    size = problem.N * problem.C * problem.H * problem.W
    return cuda.device_array(size, np.float32), cuda.device_array(size, np.uint8)


def launch(x, filt, y, scratch):
    staged, flags = scratch
    stage[-(-x.size // THREADS), THREADS](x.reshape(x.size), staged, flags)
    correlate[-(-y.size // THREADS), THREADS](staged, filt, y, x.shape[2], x.shape[3])
