"""right: static + dynamic shared, multiple arrays, 3D shared"""

import numpy as np
from numba import cuda, float32, int32

S3 = (2, 3, 4)


@cuda.jit
def k(a, n):
    st = cuda.shared.array(S3, int32)
    dy = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    if t < 24:
        st[t // 12, t // 4 % 3, t % 4] = t
    x = dy[:n]
    y = dy[n : 2 * n]
    x[t] = t
    y[t] = 2 * t
    cuda.syncthreads()
    a[t] = x[n - 1 - t] + y[n - 1 - t] + st[1, 2, 3]


a = np.zeros(32, np.float32)
k[1, 32, 0, 32 * 8](a, 32)
assert (a == 3 * np.arange(31, -1, -1) + 23).all()
