"""right: 16-bit floats, libdevice, math"""

import math

import numpy as np
from numba import cuda
from numba.cuda import libdevice


@cuda.jit
def work(h, f):
    i = cuda.grid(1)
    if i < h.size:
        h[i] = cuda.fp16.hadd(h[i], h[i])
        h[i] = h[i] * h[i]
        f[i] = libdevice.fast_expf(libdevice.sinf(f[i])) + math.log1p(f[i]) + libdevice.rsqrtf(f[i])


h = np.full(32, 1.5, np.float16)
f = np.full(32, 0.5, np.float32)
work[1, 32](h, f)
assert (h == 9).all()
assert np.allclose(f, math.exp(math.sin(0.5)) + math.log1p(0.5) + 1 / math.sqrt(0.5))
