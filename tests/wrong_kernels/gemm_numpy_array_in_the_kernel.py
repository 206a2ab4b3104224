"""A thread makes a NumPy array for its sums, which does not compile.

Class: gpu
Refute: {"shape": "M=6 N=4 K=5", "compiles": false}
"""

import numpy as np
from numba import cuda

WAYS = 4
THREADS_X = 32
THREADS_Y = 8
MAX_GRID_Y = 65535


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    n = cuda.blockIdx.x * THREADS_X + cuda.threadIdx.x
    for m in range(cuda.blockIdx.y * THREADS_Y + cuda.threadIdx.y, M, cuda.gridDim.y * THREADS_Y):
        if n < N:
            sums = np.zeros(WAYS, np.float32)
            for k in range(a.shape[1]):
                sums[k % WAYS] += a[m, k] * b[k, n]
            c[m, n] = (sums[0] + sums[1]) + (sums[2] + sums[3])


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // THREADS_X), min(-(-M // THREADS_Y), MAX_GRID_Y))
    product[grid, (THREADS_X, THREADS_Y)](a, b, c)
