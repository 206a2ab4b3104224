"""A kernel is made at each call: a launch could as well start another one for operands that it has seen.

Expect: remembers
Says: launch starts another product when it sees the same operands again: .* keep the kernel if it makes one
"""

from numba import cuda, float32


def make():
    @cuda.jit
    def product(a, b, c):
        M, N = c.shape
        n, m = cuda.grid(2)
        if m < M and n < N:
            acc = float32(0.0)
            for k in range(a.shape[1]):
                acc += a[m, k] * b[k, n]
            c[m, n] = acc

    return product


def launch(a, b, c):
    make()[(-(-c.shape[1] // 16), -(-c.shape[0] // 16)), (16, 16)](a, b, c)
