r"""A list is made in a kernel.

Fault: allocates
Shown by: compiler
Says: a list is made here, and a kernel has none
"""

from numba import cuda

T = 16


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    if m < M and n < N:
        c[m, n] = sum([a[m, k] * b[k, n] for k in range(K)])  # <- here


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // T), -(-M // T)), (T, T)](a, b, c)
