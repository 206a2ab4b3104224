"""The sum starts as None and becomes a number at the first tap.

Class: gpu
Refute: {"shape": "N=1 C=2 H=4 W=5 K=2 R=2 S=2", "compiles": false}
"""

from numba import cuda

THREADS = 128


@cuda.jit
def correlate(x, filt, y):
    N, K, P, Q = y.shape
    _, C, R, S = filt.shape
    i = cuda.grid(1)
    if i < y.size:
        q, p, k, n = i % Q, i // Q % P, i // (P * Q) % K, i // (P * Q * K)
        acc = None
        for c in range(C):
            for r in range(R):
                for s in range(S):
                    product = x[n, c, p + r, q + s] * filt[k, c, r, s]
                    acc = product if acc is None else acc + product
        y[n, k, p, q] = acc


def launch(x, filt, y):
    correlate[-(-y.size // THREADS), THREADS](x, filt, y)
