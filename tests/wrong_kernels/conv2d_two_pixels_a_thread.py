"""A thread computes two neighbouring pixels; of an odd row beyond 32 pixels the last is not computed.

Class: shapes
Refute: {"shape": "N=1 C=1 H=3 W=35 K=1 R=2 S=3"}
"""

from numba import cuda, float32

THREADS = 16


@cuda.jit
def correlate(x, filt, y):
    N, K, P, Q = y.shape
    _, C, R, S = filt.shape
    q = 2 * cuda.grid(1)
    p, k, n = cuda.blockIdx.y, cuda.blockIdx.z % K, cuda.blockIdx.z // K
    if q < Q:
        left, right = float32(0.0), float32(0.0)
        both = q + 1 < Q
        for c in range(C):
            for r in range(R):
                for s in range(S):
                    tap = filt[k, c, r, s]
                    left += x[n, c, p + r, q + s] * tap
                    if both:
                        right += x[n, c, p + r, q + s + 1] * tap
        y[n, k, p, q] = left
        if both:
            y[n, k, p, q + 1] = right


def launch(x, filt, y):
    N, K, P, Q = y.shape
    blocks = max(1, -(-(Q // 2) // THREADS))
    correlate[(blocks, P, N * K), THREADS](x, filt, y)
