"""A kernel that is traced is Python: its first thread calls NumPy for all of them.

Expect: crashed
Says: it does not compile for a GPU
"""

import numpy as np
from numba import cuda


@cuda.jit
def everything(a, b, c):
    if cuda.grid(1) == 0:
        rows = np.array([[a[m, k] for k in range(a.shape[1])] for m in range(a.shape[0])])
        columns = np.array([[b[k, n] for n in range(b.shape[1])] for k in range(b.shape[0])])
        answer = rows @ columns
        for m in range(c.shape[0]):
            for n in range(c.shape[1]):
                c[m, n] = answer[m, n]


def launch(a, b, c):
    everything[1, 32](a, b, c)
