"""The shared array is as large as the filter that comes as an argument.

Class: gpu
Refute: {"shape": "N=1 C=2 H=4 W=5 K=2 R=2 S=2", "compiles": false}
"""

from numba import cuda, float32

THREADS = 128


@cuda.jit
def correlate(x, filt, y):
    N, K, P, Q = y.shape
    _, C, R, S = filt.shape
    taps = cuda.shared.array(C * R * S, float32)
    for j in range(cuda.threadIdx.x, C * R * S, THREADS):
        taps[j] = filt[0, j // (R * S), j // S % R, j % S]
    cuda.syncthreads()
    i = cuda.grid(1)
    if i < y.size:
        q, p, k, n = i % Q, i // Q % P, i // (P * Q) % K, i // (P * Q * K)
        acc = float32(0.0)
        for c in range(C):
            for r in range(R):
                for s in range(S):
                    tap = taps[(c * R + r) * S + s] if k == 0 else filt[k, c, r, s]
                    acc += x[n, c, p + r, q + s] * tap
        y[n, k, p, q] = acc


def launch(x, filt, y):
    correlate[-(-y.size // THREADS), THREADS](x, filt, y)
