"""right: shuffle of part of a warp"""

import numpy as np
from numba import cuda


@cuda.jit
def k(a, out):
    i = cuda.threadIdx.x
    v = a[i]
    lane = i & 31
    for off in (16, 8, 4, 2, 1):
        o = cuda.shfl_down_sync(0xFFFFFFFF, v, off)
        if i + off < a.size and lane + off < 32:
            v += o
    if lane == 0:
        cuda.atomic.add(out, 0, v)


a = np.arange(48, dtype=np.int32)
out = np.zeros(1, np.int32)
k[1, 48](a, out)
assert out[0] == a.sum(), out
