r"""An array of the host, named by a kernel, is compiled in and takes constant memory.

Fault: constant-memory
Shown by: tracer
Says: the host arrays that the kernel names take 80000 bytes of constant memory
"""

import numpy as np
from numba import cuda

T = 16
ZEROS = np.zeros(20_000, np.float32)


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    if m < M and n < N:
        acc = ZEROS[m * N + n]  # <- here
        for k in range(K):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // T), -(-M // T)), (T, T)](a, b, c)
