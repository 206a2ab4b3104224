"""right: a barrier in a branch that all threads of a block take, and a launch in place"""

import numpy as np
from numba import cuda, int32


@cuda.jit
def scan(a, rounds):
    tile = cuda.shared.array(64, int32)
    t = cuda.threadIdx.x
    tile[t] = a[t]
    cuda.syncthreads()
    step = 1
    while step < 64:
        value = tile[t]
        if t >= step:
            value += tile[t - step]
        cuda.syncthreads()
        tile[t] = value
        if rounds > 0:
            cuda.syncthreads()
        step *= 2
    a[t] = tile[t]


a = np.ones(64, np.int32)
scan[1, 64](a, 1)
assert (a == np.arange(1, 65)).all()
