"""read-before-write: local accumulators not set"""

import numpy as np
from numba import cuda, float32


@cuda.jit
def k(a, out):
    acc = cuda.local.array(4, float32)
    i = cuda.grid(1)
    for j in range(4):
        acc[j] += a[i]  # fault
    out[i] = acc[0] + acc[1]


k[1, 32](np.ones(32, np.float32), np.zeros(32, np.float32))
