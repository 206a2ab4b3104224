"""Each of 128 threads fetches one tap of the filter: more than 128 stay zero.

Class: shapes
Refute: {"shape": "N=1 C=15 H=4 W=5 K=2 R=3 S=3"}
"""

from numba import cuda, float32

THREADS = 128
MOST_TAPS = 1024


@cuda.jit
def correlate(x, filt, y):
    taps = cuda.shared.array(MOST_TAPS, float32)
    N, K, P, Q = y.shape
    _, C, R, S = filt.shape
    k, n = cuda.blockIdx.y, cuda.blockIdx.z
    thread = cuda.threadIdx.x
    for i in range(thread, C * R * S, THREADS):
        taps[i] = float32(0.0)
    if thread < C * R * S:
        taps[thread] = filt[k, thread // (R * S), thread // S % R, thread % S]
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
