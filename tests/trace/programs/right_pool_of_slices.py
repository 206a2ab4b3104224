"""right: one pool of dynamic shared memory, carved by slices"""

import numpy as np
from numba import cuda, float32


@cuda.jit
def swap(a, b):
    pool = cuda.shared.array(0, float32)
    left, right = pool[:32], pool[32:64]
    i = cuda.threadIdx.x
    left[i] = a[i]
    right[i] = b[i]
    cuda.syncthreads()
    a[i] = right[31 - i]
    b[i] = left[31 - i]


a, b = np.arange(32, dtype=np.float32), np.ones(32, np.float32)
swap[1, 32, 0, 64 * 4](a, b)
assert (b == np.arange(32)[::-1]).all() and (a == 1).all()
