"""A channel of a filter that is zero ends the loop over channels, not its turn.

Class: values
Refute: {"shape": "N=1 C=3 H=4 W=5 K=3 R=2 S=2", "inputs": "zeros"}
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
        for c in range(C):
            empty = True
            for j in range(R * S):
                if filt[k, c, j // S, j % S] != float32(0.0):
                    empty = False
            if empty:
                break
            for r in range(R):
                for s in range(S):
                    acc += x[n, c, p + r, q + s] * filt[k, c, r, s]
        y[n, k, p, q] = acc


def launch(x, filt, y):
    correlate[-(-y.size // THREADS), THREADS](x, filt, y)
