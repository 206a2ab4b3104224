"""warp-sync: half of a warp has branched off, and the mask names all"""

import numpy as np
from numba import cuda


@cuda.jit
def half(a):
    t = cuda.threadIdx.x
    if t < 16:
        a[t] = cuda.shfl_down_sync(0xFFFFFFFF, a[t], 16)  # fault


half[1, 32](np.arange(32, dtype=np.int32))
