"""dynamic-overlap: two dynamic shared arrays begin at the same byte"""

import numpy as np
from numba import cuda, float32


@cuda.jit
def swap(a, b):
    left = cuda.shared.array(0, float32)
    right = cuda.shared.array(0, float32)
    i = cuda.threadIdx.x
    left[i] = a[i]
    right[i] = b[i]
    cuda.syncthreads()
    a[i] = right[31 - i]
    b[i] = left[31 - i]  # fault


swap[1, 32, 0, 64 * 4](np.zeros(32, np.float32), np.ones(32, np.float32))
