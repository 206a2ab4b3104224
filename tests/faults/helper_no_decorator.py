r"""A function that the kernel calls is a plain one.

Fault: no-decorator
Shown by: compiler
Says: @cuda\.jit.* is missing above it
"""

from numba import cuda, float32


def last(block):  # <- here
    return cuda.blockIdx.x - block


@cuda.jit
def product(a, b, c):
    n, m = cuda.grid(2)
    if m < c.shape[0] and n < c.shape[1]:
        acc = float32(0.0)
        for k in range(a.shape[1]):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc * last(1)


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // 16), -(-M // 8)), (16, 8)](a, b, c)
