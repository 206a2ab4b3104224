"""read-before-write: a tile of which a part is never written"""

import numpy as np
from numba import cuda, int32


@cuda.jit
def total(a, out):
    tile = cuda.shared.array(64, int32)
    t = cuda.threadIdx.x
    if t < a.size:
        tile[t] = a[t]
    cuda.syncthreads()
    if t == 0:
        acc = 0
        for k in range(64):
            acc += tile[k]  # fault
        out[0] = acc


total[1, 64](np.ones(50, np.int32), np.zeros(1, np.int32))
