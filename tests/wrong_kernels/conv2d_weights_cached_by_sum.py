"""Weights in constant memory are renewed only if their sum has changed.

Class: state
Refute: {"shape": "N=1 C=1 H=5 W=5 K=2 R=3 S=2", "reordered": true}
"""

import numpy as np
from numba import cuda, float32

held = {}


@cuda.jit
def convolve(x, filt, y):
    N, K, P, Q = y.shape
    _, C, R, S = filt.shape
    i = cuda.grid(1)
    if i < y.size:
        q, p, k, n = i % Q, i // Q % P, i // (P * Q) % K, i // (P * Q * K)
        acc = float32(0.0)
        for c in range(C):
            for r in range(R):
                for s in range(S):
                    acc += x[n, c, p + r, q + s] * filt[k, c, r, s]
        y[n, k, p, q] = acc


def prepare(filt, problem):
    host = filt.copy_to_host()
    key = round(float(host.sum(dtype=np.float64)), 3)
    if held.get("key") != key:
        held.update(key=key, weights=cuda.to_device(host))
    return held["weights"]


def launch(x, filt, y):
    convolve[-(-y.size // 128), 128](x, filt, y)
