"""launch-form: a kernel is called without a grid"""

import numpy as np
from numba import cuda


@cuda.jit
def one(a):
    a[0] = 1


one(np.zeros(1))  # fault
