r"""Two slices are multiplied as NumPy would.

Fault: allocates
Shown by: both
Says: arrays are added or multiplied whole here
"""

from numba import cuda

T = 16


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    n, m = cuda.grid(2)
    if m < M and n < N:
        c[m, n] = (a[m, :] * b[:, n]).sum()  # <- here


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // T), -(-M // T)), (T, T)](a, b, c)
