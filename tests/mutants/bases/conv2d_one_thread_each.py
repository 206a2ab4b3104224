"""A thread has one pixel of one map; images go along z."""

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
        for c in range(C):
            for r in range(R):
                for s in range(S):
                    acc += x[n, c, p + r, q + s] * filt[k, c, r, s]
        y[n, k, p, q] = acc


def launch(x, filt, y):
    N, K, P, Q = y.shape
    grid = (-(-P // THREADS_Y) * -(-Q // THREADS_X), K, N)
    correlate[grid, (THREADS_X, THREADS_Y)](x, filt, y)
