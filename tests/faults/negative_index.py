r"""The row before the first is the last: Python's rule, and Numba's.

Fault: negative-index
Shown by: tracer
Says: axis 0 of a is read at -1, its extent is 18: a negative index counts from the end
"""

from numba import cuda, float32

TILE = 16


@cuda.jit
def product(a, b, c):
    n, m = cuda.grid(2)
    if m < c.shape[0] and n < c.shape[1]:
        acc = float32(0.0)
        for k in range(a.shape[1]):
            acc += a[m - 1, k] * b[k, n]  # <- here
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, b, c)
