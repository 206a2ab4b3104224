r"""The sum is added to and never set to zero.

Fault: unset-variable
Shown by: compiler
Says: acc is read before it is set
"""

from numba import cuda

T = 16


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    if m < M and n < N:
        for k in range(K):
            acc += a[m, k] * b[k, n]  # <- here
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // T), -(-M // T)), (T, T)](a, b, c)
