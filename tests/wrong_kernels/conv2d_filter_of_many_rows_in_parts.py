"""A filter of more than eleven rows is cut into parts of equal rows, and the second part begins where the first does.

Class: shapes
Refute: {"shape": "N=1 C=1 H=13 W=3 K=1 R=12 S=2"}
"""

from numba import cuda, float32

THREADS = 64
MOST_R = 11


def rows_of_a_part(R):
    return max(rows for rows in range(1, MOST_R + 1) if R % rows == 0)


@cuda.jit
def correlate(x, filt, y, rows):
    N, K, P, Q = y.shape
    _, C, R, S = filt.shape
    i = cuda.grid(1)
    n, k, p, q = i // (K * P * Q), i // (P * Q) % K, i // Q % P, i % Q
    if n < N:
        acc = float32(0.0)
        for c in range(C):
            for first in range(0, R, rows):
                for r in range(rows):
                    for s in range(S):
                        acc += x[n, c, p + r, q + s] * filt[k, c, first + r, s]
        y[n, k, p, q] = acc


def launch(x, filt, y):
    correlate[-(-y.size // THREADS), THREADS](x, filt, y, rows_of_a_part(filt.shape[2]))
