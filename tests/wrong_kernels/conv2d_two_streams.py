"""Filters are turned on one stream and used on another, which waits for nothing.

Class: sound
Refute: {"shape": "N=1 C=2 H=4 W=5 K=2 R=2 S=2", "unsound": "kernels"}
"""

import numpy as np
from numba import cuda, float32

THREADS = 128

streams = []


@cuda.jit
def turn(filt, turned):
    i = cuda.grid(1)
    if i < turned.size:
        K = filt.shape[0]
        turned[i] = filt[i % K, i // K]


@cuda.jit
def correlate(x, turned, y, C, R, S):
    N, K, P, Q = y.shape
    i = cuda.grid(1)
    if i < y.size:
        q, p, k, n = i % Q, i // Q % P, i // (P * Q) % K, i // (P * Q * K)
        acc = float32(0.0)
        for c in range(C):
            for r in range(R):
                for s in range(S):
                    acc += x[n, c, p + r, q + s] * turned[((c * R + r) * S + s) * K + k]
        y[n, k, p, q] = acc


def workspace(problem):
    if not streams:
        streams.extend((cuda.stream(), cuda.stream()))
    return cuda.device_array(problem.K * problem.reduction, np.float32)


def launch(x, filt, y, turned):
    K, C, R, S = filt.shape
    turn[-(-filt.size // THREADS), THREADS, streams[0]](filt.reshape(K, C * R * S), turned)
    correlate[-(-y.size // THREADS), THREADS, streams[1]](x, turned, y, C, R, S)
