"""Exercise 01.5, find the bug: right, and slow where it should not be.

Two sums, for even k and for odd, do not wait for each other; beyond the last k a product counts 0 times. The result
is right. But on a card with few float64 units this kernel crawls, and yet every number with a point is a float32.
Which two types meet in a product, and what does Numba make of that? Change one line.
Grade: python -m common grade 01.5
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
        even, odd = float32(0.0), float32(0.0)
        for k in range(0, K, 2):
            even += a[m, k] * b[k, n]
            last = min(k + 1, K - 1)
            odd += a[m, last] * b[last, n] * (last - k)

        # store
        c[m, n] = even + odd


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    gemm_double[grid, (THREADS_X, THREADS_Y)](a, b, c)
