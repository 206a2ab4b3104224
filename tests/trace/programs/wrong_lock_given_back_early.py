"""race: a lock is given back before the element that it guards is changed"""

import numpy as np
from numba import cuda


@cuda.jit
def count(lock, total):
    done = False
    while not done:
        if cuda.atomic.cas(lock, 0, 0, 1) == 0:
            cuda.threadfence()
            cuda.atomic.exch(lock, 0, 0)
            total[0] += 1  # fault
            done = True


count[1, 64](cuda.to_device(np.zeros(1, np.int32)), cuda.to_device(np.zeros(1, np.int32)))
