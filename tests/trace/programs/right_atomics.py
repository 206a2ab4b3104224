"""right: a histogram in shared memory, then in global; a lock of blocks"""

import numpy as np
from numba import cuda, int32


@cuda.jit
def histogram(x, bins):
    local = cuda.shared.array(16, int32)
    t = cuda.threadIdx.x
    if t < 16:
        local[t] = 0
    cuda.syncthreads()
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(local, x[i], 1)
    cuda.syncthreads()
    if t < 16:
        cuda.atomic.add(bins, t, local[t])


@cuda.jit
def locked(lock, total):
    if cuda.threadIdx.x == 0:
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.threadfence()
        cuda.atomic.add(total, 0, 1)
        cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)


x = np.random.default_rng(0).integers(0, 16, 1000).astype(np.int32)
bins = np.zeros(16, np.int32)
histogram[4, 256](x, bins)
assert (bins == np.bincount(x, minlength=16)).all()
lock, total = np.zeros(1, np.int32), np.zeros(1, np.int32)
locked[8, 32](lock, total)
assert total[0] == 8
