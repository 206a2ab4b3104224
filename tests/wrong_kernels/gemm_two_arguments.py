r"""launch returns C instead of taking it.

Expect: unusable
Says: launch\(a, b\) cannot be called as launch\(a, b, c\)
"""

import numpy as np
from numba import cuda


def launch(a, b):
    return cuda.device_array((a.shape[0], b.shape[1]), np.float32)
