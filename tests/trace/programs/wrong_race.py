"""race: no barrier between the tile's writes and reads"""

import numpy as np
from numba import cuda, float32


@cuda.jit
def turn(a):
    tile = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    tile[i] = a[i]
    a[i] = tile[63 - i]  # fault


turn[1, 64](np.arange(64, dtype=np.float32))
