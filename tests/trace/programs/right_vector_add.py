"""right: host arrays, a ragged grid, an explicit loop over the grid"""

import numpy as np
from numba import cuda


@cuda.jit
def add(a, b, c):
    for i in range(cuda.grid(1), c.size, cuda.gridsize(1)):
        c[i] = a[i] + b[i]


a = np.arange(1000, dtype=np.float32)
c = np.zeros_like(a)
add[3, 128](a, 2 * a, c)
assert (c == 3 * a).all()
