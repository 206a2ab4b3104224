"""A thread computes 3 maps; the number of blocks for that is rounded down.

Class: shapes
Refute: {"shape": "N=1 C=1 H=4 W=6 K=4 R=2 S=2"}
"""

from numba import cuda, float32

MAPS = 3
THREADS_X = 16
THREADS_Y = 8


@cuda.jit
def correlate(x, filt, y):
    acc = cuda.local.array(MAPS, float32)
    N, K, P, Q = y.shape
    _, C, R, S = filt.shape
    tiles_q = (Q + THREADS_X - 1) // THREADS_X
    p = cuda.blockIdx.x // tiles_q * THREADS_Y + cuda.threadIdx.y
    q = cuda.blockIdx.x % tiles_q * THREADS_X + cuda.threadIdx.x
    k0 = cuda.blockIdx.y * MAPS
    n = cuda.blockIdx.z
    if p < P and q < Q:
        for i in range(MAPS):
            acc[i] = float32(0.0)
        for c in range(C):
            for r in range(R):
                for s in range(S):
                    pixel = x[n, c, p + r, q + s]
                    for i in range(MAPS):
                        if k0 + i < K:
                            acc[i] += pixel * filt[k0 + i, c, r, s]
        for i in range(MAPS):
            if k0 + i < K:
                y[n, k0 + i, p, q] = acc[i]


def launch(x, filt, y):
    N, K, P, Q = y.shape
    grid = (-(-P // THREADS_Y) * -(-Q // THREADS_X), max(1, K // MAPS), N)
    correlate[grid, (THREADS_X, THREADS_Y)](x, filt, y)
