"""outside: the grid is larger than the array"""

import numpy as np
from numba import cuda


@cuda.jit
def add(a, b):
    i = cuda.grid(1)
    b[i] = a[i] + 1  # fault


a = np.arange(100, dtype=np.float32)
add[4, 32](a, np.zeros_like(a))
