"""right: cuda.reduce, and its product by a function of one's own"""

import numpy as np
from numba import cuda


@cuda.reduce
def total(a, b):
    return a + b


@cuda.reduce
def largest(a, b):
    return max(a, b)


a = np.arange(1000, dtype=np.float64)
assert total(a) == a.sum()
assert total(cuda.to_device(a), init=5) == a.sum() + 5
assert largest(a) == 999
result = cuda.device_array(1, np.float64)
total(a, res=result)
assert result.copy_to_host()[0] == a.sum()
