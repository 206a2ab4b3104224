"""index-count: an array of one axis is given two indices"""

import numpy as np
from numba import cuda


@cuda.jit
def two(a):
    i, j = cuda.grid(2)
    a[i, j] = 1  # fault


two[1, (8, 8)](np.zeros(64, np.float32))
