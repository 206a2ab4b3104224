"""Taps are staged 512 at a time, and no barrier keeps those of the next chunk from those that are still read.

Class: sound
Refute: {"shape": "N=1 C=70 H=4 W=20 K=2 R=3 S=3", "unsound": "race"}
"""

from numba import cuda, float32

THREADS = 64
CHUNK = 512


@cuda.jit
def correlate(x, filt, y):
    taps = cuda.shared.array(CHUNK, float32)
    N, K, P, Q = y.shape
    _, C, R, S = filt.shape
    k = cuda.blockIdx.x % K
    i = cuda.blockIdx.x // K * THREADS + cuda.threadIdx.x
    n, p, q = i // (P * Q), i // Q % P, i % Q
    acc = float32(0.0)
    for first in range(0, C * R * S, CHUNK):
        count = min(CHUNK, C * R * S - first)
        for at in range(cuda.threadIdx.x, count, THREADS):
            tap = first + at
            taps[at] = filt[k, tap // (R * S), tap // S % R, tap % S]
        cuda.syncthreads()
        if n < N:
            for at in range(count):
                tap = first + at
                acc += x[n, tap // (R * S), p + tap // S % R, q + tap % S] * taps[at]
    if n < N:
        y[n, k, p, q] = acc


def launch(x, filt, y):
    N, K, P, Q = y.shape
    correlate[-(-N * P * Q // THREADS) * K, THREADS](x, filt, y)
