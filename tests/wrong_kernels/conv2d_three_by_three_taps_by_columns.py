"""Filters of 3 x 3 are written out tap by tap, by columns.

Class: shapes
Refute: {"shape": "N=1 C=1 H=5 W=6 K=1 R=3 S=3"}
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
        if R == 3 and S == 3:
            for c in range(C):
                acc += x[n, c, p, q] * filt[k, c, 0, 0]
                acc += x[n, c, p, q + 1] * filt[k, c, 1, 0]
                acc += x[n, c, p, q + 2] * filt[k, c, 2, 0]
                acc += x[n, c, p + 1, q] * filt[k, c, 0, 1]
                acc += x[n, c, p + 1, q + 1] * filt[k, c, 1, 1]
                acc += x[n, c, p + 1, q + 2] * filt[k, c, 2, 1]
                acc += x[n, c, p + 2, q] * filt[k, c, 0, 2]
                acc += x[n, c, p + 2, q + 1] * filt[k, c, 1, 2]
                acc += x[n, c, p + 2, q + 2] * filt[k, c, 2, 2]
            y[n, k, p, q] = acc
            return
        for c in range(C):
            for r in range(R):
                for s in range(S):
                    acc += x[n, c, p + r, q + s] * filt[k, c, r, s]
        y[n, k, p, q] = acc


def launch(x, filt, y):
    correlate[-(-y.size // THREADS), THREADS](x, filt, y)
