"""divergent-barrier: barrier in data-dependent loop"""

import numpy as np
from numba import cuda


@cuda.jit
def k(a, n):
    t = cuda.threadIdx.x
    for j in range(n[t]):
        a[t] += 1
        cuda.syncthreads()  # fault


k[1, 32](np.ones(32), np.arange(32, dtype=np.int32))
