"""right: lambda, divmod, T, del"""

import numpy as np
from numba import cuda

twice = cuda.jit(device=True)(lambda x: x * 2)


def make(f):
    d = cuda.jit(device=True)(f)

    @cuda.jit
    def k(a, m, out):
        i = cuda.grid(1)
        if i < a.size:
            q, r = divmod(a[i], 3)
            t = m.T
            out[i] = d(twice(a[i])) + q * r + t[i % 3, 0]

    return k


a = np.arange(10, dtype=np.int64)
m = np.arange(12, dtype=np.int64).reshape(4, 3)
out = np.zeros(10, np.int64)
make(lambda x: x + 1)[1, 32](a, m, out)
assert (out == 2 * a + 1 + (a // 3) * (a % 3) + a % 3).all(), out
