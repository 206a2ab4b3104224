"""right: signature forms"""

import math

import numpy as np
from numba import cuda, float32, int32, int64, types


@cuda.jit([types.void(float32[:], int64), "void(float64[::1], int64)"])
def k(a, n):
    i = cuda.grid(1)
    if i < n:
        a[i] += 1


@cuda.jit((float32[:, :], int32))
def k2(a, n):
    i, j = cuda.grid(2)
    if i < n and j < n:
        a[i, j] = i * j


@cuda.jit(fastmath=True, lineinfo=True)
def k3(a):
    i = cuda.grid(1)
    if i < a.size:
        a[i] = math.exp(a[i]) / math.sqrt(a[i] + 1)


@cuda.jit(debug=True, opt=False)
def k4(a):
    i = cuda.grid(1)
    if i < a.size:
        a[i] = i


def plain(a):
    i = cuda.grid(1)
    if i < a.size:
        a[i] = -i


k5 = cuda.jit(plain)
a = np.zeros(10, np.float32)
k[1, 32](a, 10)
assert (a == 1).all()
a = np.zeros(10, np.float64)
k[1, 32](a, 10)
assert (a == 1).all()
m = np.zeros((4, 4), np.float32)
k2[1, (4, 4)](m, 4)
assert m[3, 3] == 9
a = np.ones(10, np.float32)
k3[1, 32](a)
assert np.allclose(a, math.e / math.sqrt(2))
k4[1, 32](a)
assert (a == np.arange(10)).all()
k5[1, 32](a)
assert (a == -np.arange(10)).all()
