"""negative-index: the first thread's left neighbour is the last element"""

import numpy as np
from numba import cuda


@cuda.jit
def difference(a, b):
    i = cuda.grid(1)
    if i < a.size:
        b[i] = a[i] - a[i - 1]  # fault


a = np.arange(64, dtype=np.float32)
difference[1, 64](a, np.zeros_like(a))
