"""right: constant memory, local arrays, a negative index that is meant, closures"""

import numpy as np
from numba import cuda, float32

WEIGHTS = np.array([1, 2, 3], np.float32)


def made(scale):
    @cuda.jit
    def fold(a, out):
        weights = cuda.const.array_like(WEIGHTS)
        last = cuda.local.array(3, float32)
        i = cuda.grid(1)
        if i < out.size:
            for k in range(3):
                last[k] = a[i + k] * weights[k]
            out[i] = (last[0] + last[1] + last[-1]) * scale + a[-1] * float32(0)

    return fold


a = np.ones(34, np.float32)
out = np.zeros(32, np.float32)
made(2)[1, 32](a, out)
assert (out == 12).all()
