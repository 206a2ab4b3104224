"""Rows of taps are summed by a device function with a shared array, called for the first row and for the rest.

Class: gpu
Refute: {"shape": "N=1 C=2 H=4 W=5 K=2 R=2 S=2"}
"""

from numba import cuda, float32

THREADS_X = 16
THREADS_Y = 8
THREADS = THREADS_X * THREADS_Y


@cuda.jit(device=True)
def running(value, start):
    sums = cuda.shared.array(THREADS, float32)
    thread = cuda.threadIdx.y * THREADS_X + cuda.threadIdx.x
    if start:
        sums[thread] = float32(0.0)
    sums[thread] += value
    return sums[thread]


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
        first, rest = float32(0.0), float32(0.0)
        for c in range(C):
            for r in range(R):
                for s in range(S):
                    product = x[n, c, p + r, q + s] * filt[k, c, r, s]
                    if r == 0:
                        first = running(product, c == 0 and s == 0)
                    else:
                        rest = running(product, c == 0 and r == 1 and s == 0)
        y[n, k, p, q] = first + rest


def launch(x, filt, y):
    N, K, P, Q = y.shape
    grid = (-(-P // THREADS_Y) * -(-Q // THREADS_X), K, N)
    correlate[grid, (THREADS_X, THREADS_Y)](x, filt, y)
