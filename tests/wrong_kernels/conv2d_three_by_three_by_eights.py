"""Filters of 3 x 3 whose channels and filters come in fours have a path of their own, which takes eights of channels.

Class: shapes
Refute: {"shape": "N=1 C=12 H=6 W=7 K=4 R=3 S=3"}
"""

from numba import cuda, float32

THREADS = 128
CHUNK = 8  # channels


@cuda.jit
def correlate(x, filt, y, chunked):
    N, K, P, Q = y.shape
    _, C, R, S = filt.shape
    i = cuda.grid(1)
    if i < y.size:
        q, p, k, n = i % Q, i // Q % P, i // (P * Q) % K, i // (P * Q * K)
        acc = float32(0.0)
        for c in range(C // CHUNK * CHUNK if chunked and C > CHUNK else C):
            for r in range(R):
                for s in range(S):
                    acc += x[n, c, p + r, q + s] * filt[k, c, r, s]
        y[n, k, p, q] = acc


def launch(x, filt, y):
    K, C, R, S = filt.shape
    chunked = R == S == 3 and C % 4 == 0 and K % 4 == 0
    correlate[-(-y.size // THREADS), THREADS](x, filt, y, chunked)
