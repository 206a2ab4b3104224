"""The kernel is built for K and kept by (M, N): another K gets the first one's.

Class: state
Refute: {"shape": "M=4 N=5 K=6", "then": ["M=4 N=5 K=9"]}
"""

from numba import cuda, float32

THREADS_X = 16
THREADS_Y = 8

kernels = {}


def specialise(K):
    @cuda.jit
    def product(a, b, c):
        M, N = c.shape
        n, m = cuda.grid(2)
        if m < M and n < N:
            acc = float32(0.0)
            for k in range(K):
                acc += a[m, k] * b[k, n]
            c[m, n] = acc

    return product


def launch(a, b, c):
    M, N = c.shape
    if (M, N) not in kernels:
        kernels[M, N] = specialise(a.shape[1])
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    kernels[M, N][grid, (THREADS_X, THREADS_Y)](a, b, c)
