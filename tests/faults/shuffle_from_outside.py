r"""A shuffle takes values from threads that have branched off.

Fault: warp-sync
Shown by: tracer
Says: shfl_down_sync takes the value of a thread that does not come to it, and what becomes of it is stored to c
"""

from numba import cuda, float32


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    lane = cuda.threadIdx.x
    n, m = cuda.blockIdx.x, cuda.blockIdx.y
    mask = cuda.ballot_sync(0xFFFFFFFF, lane < 20)
    if lane < 20:
        acc = float32(0.0)
        for k in range(lane, K, 20):
            acc += a[m, k] * b[k, n]
        offset = 16
        while offset > 0:
            acc += cuda.shfl_down_sync(mask, acc, offset)  # <- here
            offset //= 2
        if lane == 0:
            c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(N, M), 32](a, b, c)
