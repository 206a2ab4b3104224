"""Exercise 09.3, find the bug: products that wrap around.

One thread computes one element of C. Small values are multiplied right. Change one line.
Grade: python -m common grade 09.3
"""

from numba import cuda, int8, int32

THREADS_X, THREADS_Y = 16, 8


@cuda.jit
def igemm_wrapping_products(a, b, c):
    M, N = c.shape
    n, m = cuda.grid(2)
    if m < M and n < N:
        acc = int32(0)
        for k in range(a.shape[1]):
            acc = int32(acc + int8(a[m, k] * b[k, n]))
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    igemm_wrapping_products[(-(-N // THREADS_X), -(-M // THREADS_Y)), (THREADS_X, THREADS_Y)](a, b, c)
