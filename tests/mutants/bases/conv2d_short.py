"""A thread has one pixel of one map, and every index a guard."""

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
            for r in range(R):
                for s in range(S_):
                    acc += x[n, c, p + r, q + s] * filt[k, c, r, s]
        y[n, k, p, q] = acc


def launch(x, filt, y):
    N, K, P, Q = y.shape
    convolve[(-(-P // TY) * -(-Q // TX), K, N), (TX, TY)](x, filt, y)
