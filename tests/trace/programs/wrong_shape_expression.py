"""shape-not-constant: the shape of a shared array is computed in the call"""

import numpy as np
from numba import cuda, float32

T = 16


@cuda.jit
def pad(a):
    tile = cuda.shared.array((T, T + 1), float32)  # fault
    i, j = cuda.threadIdx.x, cuda.threadIdx.y
    tile[i, j] = a[i, j]
    cuda.syncthreads()
    a[i, j] = tile[j, i]


pad[1, (16, 16)](np.ones((16, 16), np.float32))
