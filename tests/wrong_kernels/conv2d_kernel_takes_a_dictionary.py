"""Extents reach the kernel in a dictionary.

Class: gpu
Refute: {"shape": "N=1 C=2 H=4 W=5 K=2 R=2 S=2", "compiles": false}
"""

from numba import cuda, float32

THREADS = 128


@cuda.jit
def correlate(x, filt, y, extents):
    N, K, P, Q = y.shape
    C, R, S = extents["C"], extents["R"], extents["S"]
    i = cuda.grid(1)
    if i < y.size:
        q, p, k, n = i % Q, i // Q % P, i // (P * Q) % K, i // (P * Q * K)
        acc = float32(0.0)
        for c in range(C):
            for r in range(R):
                for s in range(S):
                    acc += x[n, c, p + r, q + s] * filt[k, c, r, s]
        y[n, k, p, q] = acc


def launch(x, filt, y):
    _, C, R, S = filt.shape
    correlate[-(-y.size // THREADS), THREADS](x, filt, y, {"C": C, "R": R, "S": S})
