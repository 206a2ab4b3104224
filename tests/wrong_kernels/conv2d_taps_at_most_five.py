"""Loops over taps are unrolled to 5 x 5, and no more.

Class: shapes
Refute: {"shape": "N=1 C=1 H=8 W=8 K=1 R=7 S=7"}
"""

from numba import cuda, float32

TX, TY = 16, 8


@cuda.jit
def convolve(x, filt, y):
    N, K, P, Q = y.shape
    _, C, R, S_ = filt.shape
    H, W = x.shape[2], x.shape[3]
    tiles = (Q + TX - 1) // TX
    p = cuda.blockIdx.x // tiles * TY + cuda.threadIdx.y
    q = cuda.blockIdx.x % tiles * TX + cuda.threadIdx.x
    k = cuda.blockIdx.y
    n = cuda.blockIdx.z
    if p < P and q < Q and k < K and n < N:
        acc = float32(0.0)
        for c in range(C):
            for r in range(min(R, 5)):
                for s in range(min(S_, 5)):
                    acc += x[n, c, p + r, q + s] * filt[k, c, r, s]
        y[n, k, p, q] = acc


def launch(x, filt, y):
    N, K, P, Q = y.shape
    convolve[(-(-P // TY) * -(-Q // TX), K, N), (TX, TY)](x, filt, y)
