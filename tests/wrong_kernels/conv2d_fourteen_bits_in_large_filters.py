"""Filters of 1,000 taps and more, all channels together, are rounded to 14 bits, and what they meet, too.

Class: values
Refute: {"shape": "N=1 C=21 H=9 W=10 K=5 R=7 S=7", "inputs": "normals"}
"""

from numba import cuda, float32

SPLIT = float32(2**10 + 1)
LONG = 1000  # terms
THREADS_X = 8
THREADS_Y = 8


@cuda.jit
def shortened(value):
    """The value rounded to 14 of its 24 bits (Veltkamp's splitting)."""
    scaled = value * SPLIT
    return scaled - (scaled - value)


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
                    left, right = x[n, c, p + r, q + s], filt[k, c, r, s]
                    if C * R * S >= LONG:
                        left, right = shortened(left), shortened(right)
                    acc += left * right
        y[n, k, p, q] = acc


def launch(x, filt, y):
    N, K, P, Q = y.shape
    grid = (-(-P // THREADS_Y) * -(-Q // THREADS_X), K, N)
    correlate[grid, (THREADS_X, THREADS_Y)](x, filt, y)
