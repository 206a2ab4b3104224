r"""A block of 64 x 32 threads is more than a GPU starts.

Expect: crashed
Says: ^LaunchLimitError at gemm_block_too_large\.py:\d+: .* 2048 threads: a block holds at most 1024
"""

from numba import cuda, float32

THREADS_X = 64
THREADS_Y = 32


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    if m < M and n < N:
        acc = float32(0.0)
        for k in range(K):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    product[grid, (THREADS_X, THREADS_Y)](a, b, c)
