"""right: shared in device function, barrier in device function"""

import numpy as np
from numba import cuda, float32


@cuda.jit(device=True)
def block_sum(v):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = v
    cuda.syncthreads()
    n = 32
    while n > 0:
        if t < n:
            s[t] += s[t + n]
        cuda.syncthreads()
        n //= 2
    r = s[0]
    cuda.syncthreads()
    return r


@cuda.jit
def k(a, out):
    i = cuda.grid(1)
    x = block_sum(a[i])
    y = block_sum(a[i] * a[i])
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x, 0] = x
        out[cuda.blockIdx.x, 1] = y


a = np.ones(128, np.float32) * 2
out = np.zeros((2, 2), np.float32)
k[2, 64](a, out)
assert (out == [[128, 256], [128, 256]]).all(), out
