r"""The output is read, times zero, before it is written.

Fault: read-before-write
Shown by: tracer
Says: c\[0, 0\], which nothing has written, is read
"""

from numba import cuda, float32

T = 16


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    if m < M and n < N:
        acc = float32(0.0)
        for k in range(K):
            acc += a[m, k] * b[k, n]
        c[m, n] = float32(1.0) * acc + float32(0.0) * c[m, n]  # <- here


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // T), -(-M // T)), (T, T)](a, b, c)
