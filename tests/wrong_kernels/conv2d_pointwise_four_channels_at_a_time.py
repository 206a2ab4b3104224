"""Filters of 1 x 1 take four channels at a time; what is left over is dropped from C = 5 on.

Class: shapes
Refute: {"shape": "N=1 C=6 H=3 W=5 K=2 R=1 S=1"}
"""

from numba import cuda, float32

THREADS = 128


@cuda.jit
def correlate(x, filt, y):
    N, K, P, Q = y.shape
    _, C, R, S = filt.shape
    i = cuda.grid(1)
    if i < y.size:
        q, p, k, n = i % Q, i // Q % P, i // (P * Q) % K, i // (P * Q * K)
        acc = float32(0.0)
        stop = C // 4 * 4 if R * S == 1 and C > 4 else C
        for c in range(stop):
            for r in range(R):
                for s in range(S):
                    acc += x[n, c, p + r, q + s] * filt[k, c, r, s]
        y[n, k, p, q] = acc


def launch(x, filt, y):
    correlate[-(-y.size // THREADS), THREADS](x, filt, y)
