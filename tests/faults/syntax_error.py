"""A bracket is not closed.

Fault: syntax
Shown by: both
Says: ^syntax_error[.]py:[0-9]+: syntax error: 
"""

from numba import cuda, float32

TILE = 16


@cuda.jit
def product(a, b, c):
    n, m = cuda.grid(2)
    if m < c.shape[0] and n < c.shape[1]:
        acc = float32(0.0)
        for k in range(a.shape[1]:  # <- here
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, b, c)
