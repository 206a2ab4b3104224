"""The filters are copied anew only if the first of them has changed.

Class: state
Refute: {"shape": "N=1 C=1 H=4 W=5 K=3 R=2 S=2", "one_weight": true}
"""

from numba import cuda, float32

THREADS = 128

held = {}


@cuda.jit
def correlate(x, filt, y):
    N, K, P, Q = y.shape
    _, C, R, S = filt.shape
    i = cuda.grid(1)
    if i < y.size:
        q, p, k, n = i % Q, i // Q % P, i // (P * Q) % K, i // (P * Q * K)
        acc = float32(0.0)
        for c in range(C):
            for r in range(R):
                for s in range(S):
                    acc += x[n, c, p + r, q + s] * filt[k, c, r, s]
        y[n, k, p, q] = acc


def prepare(filt, problem):
    host = filt.copy_to_host()
    key = problem, host[0].tobytes()
    if key not in held:
        held[key] = cuda.to_device(host)
    return held[key]


def launch(x, filt, y):
    correlate[-(-y.size // THREADS), THREADS](x, filt, y)
