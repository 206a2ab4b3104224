"""launch-limits: a block of 2,048 threads"""

import numpy as np
from numba import cuda


@cuda.jit
def one(a):
    a[cuda.grid(1)] = 1


one[1, 2048](np.zeros(2048, np.float32))  # fault
