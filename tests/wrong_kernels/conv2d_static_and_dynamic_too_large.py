"""40,000 bytes of static and 200,000 of dynamic shared memory: either would fit.

Class: gpu
Refute: {"shape": "N=1 C=2 H=4 W=5 K=2 R=2 S=2"}
"""

from numba import cuda, float32

THREADS = 128
PATCH = 10_000
DYNAMIC_BYTES = 200_000


@cuda.jit
def correlate(x, filt, y):
    N, K, P, Q = y.shape
    _, C, R, S = filt.shape
    patch = cuda.shared.array(PATCH, float32)
    taps = cuda.shared.array(0, float32)
    i = cuda.grid(1)
    patch[cuda.threadIdx.x] = float32(0.0)
    taps[cuda.threadIdx.x] = float32(0.0)
    if i < y.size:
        q, p, k, n = i % Q, i // Q % P, i // (P * Q) % K, i // (P * Q * K)
        acc = patch[cuda.threadIdx.x] + taps[cuda.threadIdx.x]
        for c in range(C):
            for r in range(R):
                for s in range(S):
                    acc += x[n, c, p + r, q + s] * filt[k, c, r, s]
        y[n, k, p, q] = acc


def launch(x, filt, y):
    correlate[-(-y.size // THREADS), THREADS, 0, DYNAMIC_BYTES](x, filt, y)
