"""right: other import forms"""

import numba
import numba.cuda as nc
import numpy as np
from numba.cuda import grid, jit, syncthreads


@numba.cuda.jit()
def k(a):
    i = numba.cuda.grid(1)
    if i < a.size:
        a[i] = i


@nc.jit
def k2(a):
    i = nc.threadIdx.x + nc.blockIdx.x * nc.blockDim.x
    if i < a.size:
        a[i] += 1


@jit
def k3(a):
    s = nc.shared.array(32, nc.float32)
    i = grid(1)
    s[nc.threadIdx.x] = 0
    syncthreads()
    if i < a.size:
        a[i] += s[nc.threadIdx.x]


a = np.zeros(40, np.int64)
k[2, 32](a)
k2[2, 32](a)
k3[2, 32](a)
assert (a == np.arange(40) + 1).all()
