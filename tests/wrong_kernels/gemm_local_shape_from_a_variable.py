"""The length of a local array is a variable of the kernel.

Class: gpu
Refute: {"shape": "M=4 N=5 K=6", "compiles": false}
"""

from numba import cuda, float32

THREADS_X = 16
THREADS_Y = 8


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    if m < M and n < N:
        rows = 2
        sums = cuda.local.array(rows * 2, float32)
        sums[0] = float32(0.0)
        for k in range(K):
            sums[0] += a[m, k] * b[k, n]
        c[m, n] = sums[0]


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    product[grid, (THREADS_X, THREADS_Y)](a, b, c)
