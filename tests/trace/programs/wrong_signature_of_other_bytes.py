"""uncaught: float64 array passed to float32 signature"""

import numpy as np
from numba import cuda


@cuda.jit("void(float32[:])")
def k(a):
    i = cuda.grid(1)
    if i < a.size:
        a[i] += 1


k[1, 32](np.ones(32))  # fault
