"""A warp adds up its 32 sums in shared memory by halves, with no barrier between the halves."""

from numba import cuda, float32

LANES = 32


@cuda.jit
def product(a, b, c):
    sums = cuda.shared.array(LANES, float32)
    lane = cuda.threadIdx.x
    m, n = cuda.blockIdx.y, cuda.blockIdx.x
    acc = float32(0.0)
    for k in range(lane, a.shape[1], LANES):
        acc += a[m, k] * b[k, n]
    sums[lane] = acc
    half = LANES // 2
    while half > 0:
        if lane < half:
            sums[lane] += sums[lane + half]
        half //= 2
    if lane == 0:
        c[m, n] = sums[0]


def launch(a, b, c):
    M, N = c.shape
    product[(N, M), LANES](a, b, c)
