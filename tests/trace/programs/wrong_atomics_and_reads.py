"""race: read of atomics without barrier"""

import numpy as np
from numba import cuda, int32


@cuda.jit
def k(x, out):
    h = cuda.shared.array(8, int32)
    t = cuda.threadIdx.x
    if t < 8:
        h[t] = 0
    cuda.syncthreads()
    cuda.atomic.add(h, x[t], 1)
    if t < 8:
        out[t] = h[t]  # fault


k[1, 64](np.arange(64, dtype=np.int32) % 8, np.zeros(8, np.int32))
