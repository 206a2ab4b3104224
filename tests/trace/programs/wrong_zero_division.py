"""zero-division: an integer is divided by zero"""

import numpy as np
from numba import cuda


@cuda.jit
def share(a, n):
    i = cuda.grid(1)
    if i < a.size:
        a[i] = a[i] // n[i]  # fault


share[1, 32](np.ones(32, np.int32), np.arange(32, dtype=np.int32))
