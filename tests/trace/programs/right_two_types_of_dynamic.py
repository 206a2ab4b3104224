"""right: two types share dynamic shared memory, each with its own part"""

import numpy as np
from numba import cuda, float32, int32


@cuda.jit
def both(a, b):
    floats = cuda.shared.array(0, float32)[:32]
    ints = cuda.shared.array(0, int32)[32:]
    i = cuda.threadIdx.x
    floats[i] = a[i]
    ints[i] = b[i]
    cuda.syncthreads()
    a[i] = floats[31 - i] + ints[31 - i]


a, b = np.arange(32, dtype=np.float32), np.arange(32, dtype=np.int32)
both[1, 32, 0, 32 * 8](a, b)
assert (a == 2 * np.arange(32)[::-1]).all()
