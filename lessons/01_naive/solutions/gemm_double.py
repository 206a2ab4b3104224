"""Exercise 01.2, find the bug: right, and slow where it should not be.

The result is right, even more precise than it must be. On a card with few float64 units this kernel crawls. Find
the instruction that nobody meant to write, and change one line.
Grade: python -m common grade 01.2
"""

from numba import cuda, float32

THREADS_X = 32
THREADS_Y = 8


@cuda.jit
def gemm_double(a, b, c):
    M, N = c.shape
    K = a.shape[1]

    # locate
    n, m = cuda.grid(2)
    if m < M and n < N:
        # multiply
        acc = float32(0.0)
        for k in range(K):
            acc += a[m, k] * b[k, n]

        # store
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    gemm_double[grid, (THREADS_X, THREADS_Y)](a, b, c)
