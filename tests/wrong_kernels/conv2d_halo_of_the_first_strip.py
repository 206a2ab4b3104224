"""Strips of 128 columns: the halo to the right is read where that of the first strip lies.

Class: shapes
Refute: {"shape": "N=1 C=1 H=3 W=262 K=2 R=2 S=3"}
"""

from functools import lru_cache

from numba import cuda, float32

STRIP = 128


@lru_cache
def specialise(S):
    ROW = STRIP + S - 1

    @cuda.jit
    def correlate(x, filt, y):
        row = cuda.shared.array(ROW, float32)
        N, K, P, Q = y.shape
        _, C, R, _ = filt.shape
        W = x.shape[3]
        across = (Q + STRIP - 1) // STRIP
        tx = cuda.threadIdx.x
        p, q0 = cuda.blockIdx.x // across, cuda.blockIdx.x % across * STRIP
        for n in range(cuda.blockIdx.z, N, cuda.gridDim.z):
            for k in range(cuda.blockIdx.y, K, cuda.gridDim.y):
                acc = float32(0.0)
                for c in range(C):
                    for r in range(R):
                        row[tx] = x[n, c, p + r, q0 + tx] if q0 + tx < W else float32(0.0)
                        for w in range(STRIP + tx, ROW, STRIP):
                            row[w] = x[n, c, p + r, w] if w < W else float32(0.0)
                        cuda.syncthreads()
                        for s in range(S):
                            acc += row[tx + s] * filt[k, c, r, s]
                        cuda.syncthreads()
                if q0 + tx < Q:
                    y[n, k, p, q0 + tx] = acc

    return correlate


def launch(x, filt, y):
    N, K, P, Q = y.shape
    specialise(filt.shape[3])[(P * -(-Q // STRIP), min(K, 65535), min(N, 65535)), STRIP](x, filt, y)
