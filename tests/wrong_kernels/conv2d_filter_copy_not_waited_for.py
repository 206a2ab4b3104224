"""The filter is copied to shared memory without registers, and read after a barrier alone.

Class: sound
Refute: {"shape": "N=1 C=2 H=4 W=5 K=2 R=2 S=2", "unsound": "async"}
"""

from numba import cuda, float32

from lessons.wide import copy1_async, shared_array

THREADS = 64
MOST_TAPS = 1024


@cuda.jit
def correlate(x, filt, y):
    taps = shared_array(MOST_TAPS)
    N, K, P, Q = y.shape
    _, C, R, S = filt.shape
    k, n = cuda.blockIdx.y, cuda.blockIdx.z
    for i in range(cuda.threadIdx.x, C * R * S, THREADS):
        copy1_async(taps, i, filt, k * C * R * S + i)
    cuda.syncthreads()
    i = cuda.grid(1)
    if i < P * Q:
        p, q = i // Q, i % Q
        acc = float32(0.0)
        for c in range(C):
            for r in range(R):
                for s in range(S):
                    acc += x[n, c, p + r, q + s] * taps[(c * R + r) * S + s]
        y[n, k, p, q] = acc


def launch(x, filt, y):
    N, K, P, Q = y.shape
    _, C, R, S = filt.shape
    if C * R * S > MOST_TAPS:
        raise ValueError(f"{C=} {R=} {S=}: shared memory is laid out for {MOST_TAPS} taps")
    correlate[(-(-P * Q // THREADS), K, N), THREADS](x, filt, y)
