"""uncaught: the program's own check fails, as device memory was not copied back"""

import numpy as np
from numba import cuda


@cuda.jit
def one(a):
    a[cuda.grid(1)] = 1


a = np.zeros(32, np.float32)
one[1, 32](cuda.to_device(a))
assert (a == 1).all()  # fault
