"""Filters go by 128 along threads; where the second 128 begin is counted without the channels.

Class: shapes
Refute: {"shape": "N=1 C=2 H=4 W=4 K=130 R=1 S=2"}
"""

from numba import cuda, float32

FILTERS = 128


@cuda.jit
def correlate(x, filt, y, C, R, S):
    N, K, P, Q = y.shape
    k0 = cuda.blockIdx.y * FILTERS
    k = k0 + cuda.threadIdx.x
    pixel = cuda.blockIdx.x
    n, p, q = pixel // (P * Q), pixel // Q % P, pixel % Q
    if k < K:
        begin = k0 * R * S + cuda.threadIdx.x * C * R * S
        acc = float32(0.0)
        for c in range(C):
            for r in range(R):
                for s in range(S):
                    acc += x[n, c, p + r, q + s] * filt[begin + (c * R + r) * S + s]
        y[n, k, p, q] = acc


def launch(x, filt, y):
    N, K, P, Q = y.shape
    correlate[(N * P * Q, -(-K // FILTERS)), FILTERS](x, filt.reshape(filt.size), y, *filt.shape[1:])
