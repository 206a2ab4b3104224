"""right: explicit signatures compile where they are defined; the arguments become their types"""

import numpy as np
from numba import cuda


@cuda.jit("float32(float32, float32)", device=True)
def axpy(a, x):
    return a * x


@cuda.jit("void(float32[:], float32, int32)")
def scale(x, a, n):
    i = cuda.grid(1)
    if i < n:
        x[i] = axpy(a, x[i])


x = cuda.to_device(np.arange(100, dtype=np.float32))
scale[1, 128](x, 0.5, 100)
assert (x.copy_to_host() == np.arange(100) * np.float32(0.5)).all()
