"""shared-memory: a static shared array of 64 KiB"""

import numpy as np
from numba import cuda, float32

SHAPE = (128, 128)


@cuda.jit
def big(a):
    tile = cuda.shared.array(SHAPE, float32)  # fault
    tile[0, cuda.threadIdx.x] = a[0]
    a[0] = tile[0, 0]


big[1, 1](np.zeros(1, np.float32))
