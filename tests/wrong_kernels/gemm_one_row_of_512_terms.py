"""A single row of A has a path of its own, which keeps it in shared memory: of 512 elements, those beyond are lost.

Class: shapes
Refute: {"shape": "M=1 N=5 K=600"}
"""

from numba import cuda, float32

THREADS_X = 16
THREADS_Y = 8
STAGED = 512  # elements of the row


@cuda.jit
def product(a, b, c, stop):
    M, N = c.shape
    n, m = cuda.grid(2)
    if m < M and n < N:
        acc = float32(0.0)
        for k in range(stop):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    product[grid, (THREADS_X, THREADS_Y)](a, b, c, min(K, STAGED) if M == 1 else K)
