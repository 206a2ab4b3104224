r"""NumPy is used and not imported.

Fault: unknown-name
Shown by: both
Says: np is not imported: import numpy as np is missing; and np\.dot takes whole arrays, and a kernel takes none
"""

from numba import cuda

T = 16


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    n, m = cuda.grid(2)
    if m < M and n < N:
        c[m, n] = np.dot(a[m, :], b[:, n])  # <- here


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // T), -(-M // T)), (T, T)](a, b, c)
