r"""A workspace is added to, and no launch sets it to zero.

Fault: unstable
Shown by: tracer
Says: each launch adds to the sums of the one before
"""

import numpy as np
from numba import cuda

T = 16


@cuda.jit
def product(a, b, c, work):
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    if m < M and n < N:
        for k in range(K):
            cuda.atomic.add(work, (m, n), a[m, k] * b[k, n])
        c[m, n] = work[m, n]


def workspace(problem):
    work = cuda.device_array((problem.M, problem.N), "float32")
    work.copy_to_device(np.zeros((problem.M, problem.N), np.float32))
    return work


def launch(a, b, c, work):
    M, N = c.shape
    product[(-(-N // T), -(-M // T)), (T, T)](a, b, c, work)
