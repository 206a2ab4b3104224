"""read-before-write: a sum in device memory that nobody set to zero"""

import numpy as np
from numba import cuda


@cuda.jit
def count(a, out):
    i = cuda.grid(1)
    if i < a.size:
        cuda.atomic.add(out, 0, a[i])  # fault


out = cuda.device_array(1, np.int32)
count[1, 64](np.ones(64, np.int32), out)
