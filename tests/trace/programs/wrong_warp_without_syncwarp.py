"""race: warp reduction without syncwarp"""

import numpy as np
from numba import cuda, float32


@cuda.jit
def k(a, out):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    cuda.syncthreads()
    if t < 32:
        s[t] += s[t + 32]
        s[t] += s[t + 16]  # fault
        s[t] += s[t + 8]
        s[t] += s[t + 4]
        s[t] += s[t + 2]
        s[t] += s[t + 1]
    if t == 0:
        out[0] = s[0]


k[1, 64](np.ones(64, np.float32), np.zeros(1, np.float32))
