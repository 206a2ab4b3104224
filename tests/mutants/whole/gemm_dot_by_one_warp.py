"""A single element (M = N = 1) is summed by the lanes of one warp, 32 whole terms at a time."""

from numba import cuda, float32

LANES = 32
THREADS_X = 16
THREADS_Y = 8


@cuda.jit
def dot(a, b, c):
    partial = cuda.shared.array(LANES, float32)
    lane = cuda.threadIdx.x
    K = a.shape[1]
    acc = float32(0.0)
    for k0 in range(0, max(K - K % LANES, LANES), LANES):
        if k0 + lane < K:
            acc += a[0, k0 + lane] * b[k0 + lane, 0]
    partial[lane] = acc
    cuda.syncthreads()
    if lane == 0:
        total = float32(0.0)
        for i in range(LANES):
            total += partial[i]
        c[0, 0] = total


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    n, m = cuda.grid(2)
    if m < M and n < N:
        acc = float32(0.0)
        for k in range(a.shape[1]):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    if M == N == 1:
        dot[1, LANES](a, b, c)
    else:
        product[(-(-N // THREADS_X), -(-M // THREADS_Y)), (THREADS_X, THREADS_Y)](a, b, c)
