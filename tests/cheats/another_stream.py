"""The kernel runs on a stream of its own, where a clock on the default stream does not see it.

Expect: stream
Says: product runs on a stream of its own
"""

from numba import cuda, float32


@cuda.jit
def product(a, b, c):
    n, m = cuda.grid(2)
    if m < c.shape[0] and n < c.shape[1]:
        acc = float32(0.0)
        for k in range(a.shape[1]):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    grid = (-(-c.shape[1] // 8), -(-c.shape[0] // 8))
    product[grid, (8, 8), cuda.stream()](a, b, c)
