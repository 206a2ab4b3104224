"""right: locks of the whole grid, one for each bin, in a kernel and in a device function"""

import numpy as np
from numba import cuda, int32


@cuda.jit(device=True)
def acquire(lock, i):
    while cuda.atomic.cas(lock, i, 0, 1) != 0:
        pass
    cuda.threadfence()


@cuda.jit(device=True)
def release(lock, i):
    cuda.threadfence()
    cuda.atomic.exch(lock, i, 0)


@cuda.jit
def count_by_block(lock, total):
    if cuda.threadIdx.x == 0:
        acquire(lock, 0)
        total[0] += 1
        release(lock, 0)


@cuda.jit
def count_by_thread(lock, total):
    done = False
    while not done:
        if cuda.atomic.cas(lock, 0, 0, 1) == 0:
            cuda.threadfence()
            total[0] += 1
            cuda.threadfence()
            cuda.atomic.exch(lock, 0, 0)
            done = True


@cuda.jit
def bins(values, locks, counts, sums):
    i = cuda.grid(1)
    if i < values.size:
        b = values[i] % counts.size
        done = int32(0)
        while done == 0:
            if cuda.atomic.compare_and_swap(locks[b:], 0, 1) == 0:
                cuda.threadfence()
                counts[b] += 1
                sums[b] += values[i]
                cuda.threadfence()
                cuda.atomic.exch(locks, b, 0)
                done = int32(1)


lock, total = cuda.to_device(np.zeros(1, np.int32)), cuda.to_device(np.zeros(1, np.int32))
count_by_block[7, 64](lock, total)
assert total.copy_to_host()[0] == 7
count_by_thread[2, 48](lock, total)
assert total.copy_to_host()[0] == 7 + 96

values = np.arange(150, dtype=np.int32)
counts, sums = np.zeros(5, np.int32), np.zeros(5, np.int32)
bins[3, 50](values, cuda.to_device(np.zeros(5, np.int32)), counts, sums)
assert (counts == 30).all()
assert (sums == [values[values % 5 == b].sum() for b in range(5)]).all()
