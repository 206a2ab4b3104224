"""Prepare forgets its return.

Fault: returns-nothing
Shown by: both
Says: prepare returns nothing, and what it returns takes the weights' place
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


def prepare(b, problem):  # <- here
    b.copy_to_host()


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // 16), -(-M // 8)), (16, 8)](a, b, c)
