"""right: a thread that has returned is not waited for"""

import numpy as np
from numba import cuda, float32


@cuda.jit
def halve(a, n):
    i = cuda.grid(1)
    if i >= n:
        return
    tile = cuda.shared.array(64, float32)
    tile[cuda.threadIdx.x] = a[i]
    cuda.syncthreads()
    a[i] = tile[cuda.threadIdx.x] / float32(2)


a = np.ones(100, np.float32)
halve[2, 64](a, 100)
assert (a == 0.5).all()
