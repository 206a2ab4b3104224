"""dynamic-overlap: float and int"""

import numpy as np
from numba import cuda, float32, int32


@cuda.jit
def k(a, b):
    f = cuda.shared.array(0, float32)
    n = cuda.shared.array(0, int32)
    t = cuda.threadIdx.x
    f[t] = a[t]
    n[t] = b[t]
    cuda.syncthreads()
    a[t] = f[31 - t]  # fault
    b[t] = n[31 - t]


k[1, 32, 0, 256](np.ones(32, np.float32), np.ones(32, np.int32))
