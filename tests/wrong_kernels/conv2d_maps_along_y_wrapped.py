"""More than 65535 maps go in turns that are 65536 apart: the last of a turn is left out.

Class: shapes
Refute: {"shape": "N=1 C=1 H=1 W=1 K=65540 R=1 S=1"}
"""

from numba import cuda, float32

THREADS_X = 1
THREADS_Y = 1
MAX_GRID_Y = 65535


@cuda.jit
def correlate(x, filt, y, first):
    N, K, P, Q = y.shape
    _, C, R, S = filt.shape
    tiles_q = (Q + THREADS_X - 1) // THREADS_X
    p = cuda.blockIdx.x // tiles_q * THREADS_Y + cuda.threadIdx.y
    q = cuda.blockIdx.x % tiles_q * THREADS_X + cuda.threadIdx.x
    k = cuda.blockIdx.y + first
    n = cuda.blockIdx.z
    if p < P and q < Q:
        acc = float32(0.0)
        for c in range(C):
            for r in range(R):
                for s in range(S):
                    acc += x[n, c, p + r, q + s] * filt[k, c, r, s]
        y[n, k, p, q] = acc


def launch(x, filt, y):
    N, K, P, Q = y.shape
    tiles = -(-P // THREADS_Y) * -(-Q // THREADS_X)
    for first in range(0, K, MAX_GRID_Y + 1):
        grid = (tiles, min(K - first, MAX_GRID_Y), N)
        correlate[grid, (THREADS_X, THREADS_Y)](x, filt, y, first)
