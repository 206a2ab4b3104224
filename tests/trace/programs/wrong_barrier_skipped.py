"""divergent-barrier: half of the threads skip a barrier"""

import numpy as np
from numba import cuda, float32


@cuda.jit
def fold(a):
    tile = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    tile[t] = a[t]
    if t < 32:
        cuda.syncthreads()  # fault
        tile[t] += tile[t + 32]
    a[t] = tile[t]


fold[1, 64](np.ones(64, np.float32))
