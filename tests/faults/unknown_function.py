"""NumPy's dot product does not exist in a kernel.

Fault: allocates
Shown by: compiler
Says: np.dot takes whole arrays, and a kernel takes none
"""

import numpy as np
from numba import cuda

TILE = 16


@cuda.jit
def product(a, b, c):
    n, m = cuda.grid(2)
    if m < c.shape[0] and n < c.shape[1]:
        c[m, n] = np.dot(a[m], b[:, n])  # <- here


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, b, c)
