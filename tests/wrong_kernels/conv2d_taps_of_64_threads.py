"""64 threads stage a filter in one go: taps beyond the 64th stay unset.

Class: shapes
Refute: {"shape": "N=1 C=1 H=9 W=12 K=1 R=9 S=9"}
"""

from functools import lru_cache

from numba import cuda, float32

THREADS = 64


@lru_cache
def specialise(R, S):
    WIDTH = THREADS + S - 1

    @cuda.jit
    def strip(x, filt, y):
        line = cuda.shared.array((R, WIDTH), float32)
        taps = cuda.shared.array((R, S), float32)
        N, K, P, Q = y.shape
        C, H, W = x.shape[1:]
        tx = cuda.threadIdx.x
        tiles = (Q + THREADS - 1) // THREADS
        b = cuda.blockIdx.x
        q0 = b % tiles * THREADS
        p = b // tiles % P
        k = b // tiles // P % K
        n = b // tiles // P // K
        acc = float32(0.0)
        for c in range(C):
            for r in range(R):
                for w in range(tx, WIDTH, THREADS):
                    if q0 + w < W:
                        line[r, w] = x[n, c, p + r, q0 + w]
            if tx < R * S:
                taps[tx // S, tx % S] = filt[k, c, tx // S, tx % S]
            cuda.syncthreads()
            for r in range(R):
                for s in range(S):
                    acc += line[r, tx + s] * taps[r, s]
            cuda.syncthreads()
        if q0 + tx < Q:
            y[n, k, p, q0 + tx] = acc

    return strip


def launch(x, filt, y):
    N, K, P, Q = y.shape
    R, S = filt.shape[2:]
    specialise(R, S)[N * K * P * -(-Q // THREADS), THREADS](x, filt, y)
