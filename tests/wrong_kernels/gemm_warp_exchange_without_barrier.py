"""Lanes exchange a row of A through shared memory; each reads what its neighbour has just written.

Class: sound
Refute: {"shape": "M=3 N=4 K=40", "unsound": "race", "ordinary": null}
"""

from numba import cuda, float32

LANES = 32


@cuda.jit
def product(a, b, c):
    row = cuda.shared.array(LANES, float32)
    lane = cuda.threadIdx.x
    m = cuda.blockIdx.y
    n = cuda.blockIdx.x * LANES + lane
    M, K = a.shape
    N = c.shape[1]
    acc = float32(0.0)
    for k0 in range(0, K, LANES):
        row[lane] = a[m, k0 + lane] if k0 + lane < K else float32(0.0)
        for k in range(min(LANES, K - k0)):
            if n < N:
                acc += row[k] * b[k0 + k, n]
    if n < N:
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // LANES), M), LANES](a, b, c)
