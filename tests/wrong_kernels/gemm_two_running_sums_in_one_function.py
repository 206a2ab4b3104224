"""A device function keeps a running sum in shared memory; called at two places, it keeps one, not two.

Class: gpu
Refute: {"shape": "M=4 N=5 K=6"}
"""

from numba import cuda, float32

THREADS_X = 16
THREADS_Y = 8
THREADS = THREADS_X * THREADS_Y


@cuda.jit(device=True)
def running(value, start):
    sums = cuda.shared.array(THREADS, float32)
    thread = cuda.threadIdx.y * THREADS_X + cuda.threadIdx.x
    if start:
        sums[thread] = float32(0.0)
    sums[thread] += value
    return sums[thread]


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    if m < M and n < N:
        even, odd = float32(0.0), float32(0.0)
        for k in range(0, K, 2):
            even = running(a[m, k] * b[k, n], k == 0)
            if k + 1 < K:
                odd = running(a[m, k + 1] * b[k + 1, n], k == 0)
        c[m, n] = even + odd


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    product[grid, (THREADS_X, THREADS_Y)](a, b, c)
