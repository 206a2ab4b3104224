"""Four terms at a time if 4 divides N; that K is no multiple of 4 is seen only above 8.

Class: shapes
Refute: {"shape": "M=3 N=8 K=7"}
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
        acc = float32(0.0)
        if N % 4 == 0 and K >= 4:
            stop = K if K > 8 else K // 4 * 4
            for k in range(stop):
                acc += a[m, k] * b[k, n]
        else:
            for k in range(K):
                acc += a[m, k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    product[grid, (THREADS_X, THREADS_Y)](a, b, c)
