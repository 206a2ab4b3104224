"""The result is computed and never stored.

Fault: unwritten
Shown by: tracer
Says: elements of c were never written
"""

from numba import cuda, float32

TILE = 16


@cuda.jit
def product(a, b, c):
    n, m = cuda.grid(2)
    if m < c.shape[0] and n < c.shape[1]:
        acc = float32(0.0)
        for k in range(a.shape[1]):
            acc += a[m, k] * b[k, n]
        if acc != acc:
            c[m, n] = acc  # <- here


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, b, c)
