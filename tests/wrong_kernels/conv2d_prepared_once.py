"""prepare turns the filters round at its first call, and never again.

Class: state
Refute: {"shape": "N=1 C=1 H=4 W=5 K=2 R=2 S=2", "launches": 2}
"""

import numpy as np
from numba import cuda, float32

THREADS = 128

turned = []


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
                    acc += x[n, c, p + r, q + s] * filt[k, c, R - 1 - r, S - 1 - s]
        y[n, k, p, q] = acc


def prepare(filt, problem):
    if not turned:
        turned.append(cuda.to_device(np.ascontiguousarray(filt.copy_to_host()[:, :, ::-1, ::-1])))
    return turned[0]


def launch(x, filt, y):
    correlate[-(-y.size // THREADS), THREADS](x, filt, y)
