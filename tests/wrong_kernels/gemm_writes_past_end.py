"""Elements are stored in pairs, and with an odd N the last pair reaches past the end of C.

Expect: wrong
Says: each is 0, only m >= 1 and n = 0
Expect on GPU: wrote_outside
Says on GPU: ^1 elements written outside c: 1 past its end
"""

from types import SimpleNamespace

import numpy as np
from numba import cuda, float32

THREADS_X = 16
THREADS_Y = 8


@cuda.jit
def product(a, b, c):
    M, K = a.shape
    N = b.shape[1]
    pair, m = cuda.grid(2)
    n = 2 * pair
    if m < M and n < N:
        left = float32(0.0)
        right = float32(0.0)
        for k in range(K):
            left += a[m, k] * b[k, n]
            if n + 1 < N:
                right += a[m, k] * b[k, n + 1]
        c[m * N + n] = left
        c[m * N + n + 1] = right


def pointer(c):
    """The elements from the start of ``c`` on, one more than it has: no index of ``product`` is out of bounds."""
    if isinstance(c, np.ndarray):  # the tracer
        return np.lib.stride_tricks.as_strided(np.asarray(c), (c.size + 1,), (4,))
    longer = {**c.__cuda_array_interface__, "shape": (c.size + 1,), "strides": None}
    return cuda.as_cuda_array(SimpleNamespace(__cuda_array_interface__=longer))


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // (2 * THREADS_X)), -(-M // THREADS_Y))
    product[grid, (THREADS_X, THREADS_Y)](a, b, pointer(c))
