"""divergent-barrier: threads wait at two different barriers"""

import numpy as np
from numba import cuda


@cuda.jit
def parts(a):
    t = cuda.threadIdx.x
    if t % 2 == 0:
        a[t] = 1
        cuda.syncthreads()  # fault
    else:
        a[t] = 2
        cuda.syncthreads()
    a[t] += 1


parts[1, 64](np.ones(64, np.float32))
