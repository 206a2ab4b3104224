"""A function of launch calls itself without end.

Fault: recursion
Shown by: both
Says: a function calls itself without end
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


def rounded(size):
    return rounded(size + 1)  # <- here


def launch(a, b, c):
    M, N = c.shape
    product[(rounded(N), M), (16, 8)](a, b, c)
