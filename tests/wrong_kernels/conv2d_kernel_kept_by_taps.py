"""The kernel knows the number of channels, and is kept by R and S alone.

Class: state
Refute: {"shape": "N=1 C=1 H=4 W=5 K=2 R=2 S=2", "then": ["N=1 C=3 H=4 W=5 K=2 R=2 S=2"]}
"""

from functools import lru_cache

from numba import cuda, float32

THREADS = 128
seen = []


@lru_cache
def specialise(R, S):
    C = seen[-1]

    @cuda.jit
    def correlate(x, filt, y):
        N, K, P, Q = y.shape
        i = cuda.grid(1)
        if i < y.size:
            q, p, k, n = i % Q, i // Q % P, i // (P * Q) % K, i // (P * Q * K)
            acc = float32(0.0)
            for c in range(C):
                for r in range(R):
                    for s in range(S):
                        acc += x[n, c, p + r, q + s] * filt[k, c, r, s]
            y[n, k, p, q] = acc

    return correlate


def launch(x, filt, y):
    _, C, R, S = filt.shape
    seen.append(C)
    specialise(R, S)[-(-y.size // THREADS), THREADS](x, filt, y)
