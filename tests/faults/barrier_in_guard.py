r"""Threads outside the guard never come to the barrier inside it.

Fault: divergent-barrier
Shown by: tracer
Says: \d+ threads do not reach this barrier, which others wait at
"""

from numba import cuda, float32


@cuda.jit
def product(a, b, c):
    n, m = cuda.grid(2)
    if m < c.shape[0] and n < c.shape[1]:
        acc = float32(0.0)
        for k in range(a.shape[1]):
            acc += a[m, k] * b[k, n]
        cuda.syncthreads()  # <- here
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // 16), -(-M // 8)), (16, 8)](a, b, c)
