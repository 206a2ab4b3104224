"""Filters that would not fit 48 KiB as float32 are kept in float16.

Class: values
Refute: {"shape": "N=1 C=36 H=5 W=5 K=40 R=3 S=3", "inputs": "normals"}
"""

import numpy as np
from numba import cuda, float32

THREADS_X, THREADS_Y = 16, 16
SHARED_BYTES = 48 * 1024


@cuda.jit
def correlate(x, filt, y, first):
    N, K, P, Q = y.shape
    _, C, R, S = filt.shape
    across = (Q + THREADS_X - 1) // THREADS_X
    p = cuda.blockIdx.x // across * THREADS_Y + cuda.threadIdx.y
    q = cuda.blockIdx.x % across * THREADS_X + cuda.threadIdx.x
    k = first + cuda.blockIdx.y
    for n in range(cuda.blockIdx.z, N, cuda.gridDim.z):
        if p < P and q < Q:
            acc = float32(0.0)
            for c in range(C):
                for r in range(R):
                    for s in range(S):
                        acc += x[n, c, p + r, q + s] * float32(filt[k, c, r, s])
            y[n, k, p, q] = acc


def prepare(filt, problem):
    if filt.nbytes <= SHARED_BYTES:
        return filt
    return cuda.to_device(filt.copy_to_host().astype(np.float16))


def launch(x, filt, y):
    N, K, P, Q = y.shape
    tiles = -(-P // THREADS_Y) * -(-Q // THREADS_X)
    for first in range(0, K, 65535):
        correlate[(tiles, min(K - first, 65535), min(N, 65535)), (THREADS_X, THREADS_Y)](x, filt, y, first)
