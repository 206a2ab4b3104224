"""launch returns C instead of taking it."""

import numpy as np
from numba import cuda


def launch(a, b):
    return cuda.device_array((a.shape[0], b.shape[1]), np.float32)
