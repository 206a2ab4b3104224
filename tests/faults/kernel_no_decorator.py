r"""The kernel is a plain function.

Fault: no-decorator
Shown by: both
Says: line \d+ starts product as a kernel, and product is a plain function: @cuda\.jit is missing
"""

from numba import cuda, float32


def product(a, b, c):  # <- here
    n, m = cuda.grid(2)
    if m < c.shape[0] and n < c.shape[1]:
        acc = float32(0.0)
        for k in range(a.shape[1]):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // 16), -(-M // 8)), (16, 8)](a, b, c)
