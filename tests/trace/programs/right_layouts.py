"""right: arrays in Fortran's order, slices of device arrays, three dimensions, printing"""

import numpy as np
from numba import cuda


@cuda.jit
def fill(a):
    i, j, k = cuda.grid(3)
    if i < a.shape[0] and j < a.shape[1] and k < a.shape[2]:
        a[i, j, k] = i * 100 + j * 10 + k
        if i == 0 and j == 0:
            print("thread", k, a[i, j, k])


@cuda.jit
def column(a, out):
    i = cuda.grid(1)
    if i < a.shape[0]:
        out[i] = a[i]


a = cuda.device_array((4, 5, 6), dtype=np.int64, order="F")
fill[(1, 2, 2), (4, 4, 4)](a)
wanted = np.fromfunction(lambda i, j, k: i * 100 + j * 10 + k, (4, 5, 6))
assert (a.copy_to_host() == wanted).all()
out = cuda.device_array_like(np.zeros(5, np.int64))
column[1, 32](a[1, :, 2], out)
assert (out.copy_to_host() == wanted[1, :, 2]).all()
