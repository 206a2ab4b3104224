"""A filter of one row takes the path for filters of one column.

Class: shapes
Refute: {"shape": "N=1 C=1 H=5 W=6 K=2 R=1 S=3"}
"""

from numba import cuda, float32

THREADS_X = 16
THREADS_Y = 8


@cuda.jit
def correlate(x, filt, y):
    N, K, P, Q = y.shape
    _, C, R, S = filt.shape
    tiles_q = (Q + THREADS_X - 1) // THREADS_X
    p = cuda.blockIdx.x // tiles_q * THREADS_Y + cuda.threadIdx.y
    q = cuda.blockIdx.x % tiles_q * THREADS_X + cuda.threadIdx.x
    k = cuda.blockIdx.y
    n = cuda.blockIdx.z
    if p < P and q < Q:
        acc = float32(0.0)
        if min(R, S) == 1:
            for c in range(C):
                for i in range(R * S):
                    if p + i < x.shape[2]:
                        acc += x[n, c, p + i, q] * filt[k, c, i // S, i % S]
            y[n, k, p, q] = acc
            return
        for c in range(C):
            for r in range(R):
                for s in range(S):
                    acc += x[n, c, p + r, q + s] * filt[k, c, r, s]
        y[n, k, p, q] = acc


def launch(x, filt, y):
    N, K, P, Q = y.shape
    grid = (-(-P // THREADS_Y) * -(-Q // THREADS_X), K, N)
    correlate[grid, (THREADS_X, THREADS_Y)](x, filt, y)
