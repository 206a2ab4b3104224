"""race: a field of the next record is read while its thread writes it"""

import numpy as np
from numba import cuda

body = np.dtype([("pos", np.float32, 3), ("n", np.int32)])


@cuda.jit
def follow(a):
    i = cuda.grid(1)
    if i < a.size:
        a[i].pos[0] = a[(i + 1) % a.size].pos[0] + 1  # fault


a = np.zeros(8, body)
follow[1, 8](a)
