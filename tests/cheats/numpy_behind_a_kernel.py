r"""NumPy multiplies, and a kernel copies what it got.

Refused: `np.matmul`
Expect: host_access
Says: launch reaches into an operand from the host
"""

import numpy as np
from numba import cuda


@cuda.jit
def copy(source, target):
    n, m = cuda.grid(2)
    if m < target.shape[0] and n < target.shape[1]:
        target[m, n] = source[m, n]


def launch(a, b, c):
    answer = cuda.to_device(np.matmul(np.asarray(a), np.asarray(b)))
    copy[(-(-c.shape[1] // 8), -(-c.shape[0] // 8)), (8, 8)](answer, c)
