"""Prepare fills an array that the kernel takes as a constant: on a GPU it keeps what it held when it was compiled.

Class: gpu
Refute: {"shape": "M=3 N=3 K=3", "compiles": true, "ordinary": null}
"""

import numpy as np
from numba import cuda, float32

WEIGHTS = np.zeros((128, 160), np.float32)


@cuda.jit
def product(a, b, c):
    weights = cuda.const.array_like(WEIGHTS)
    n, m = cuda.grid(2)
    if m < c.shape[0] and n < c.shape[1]:
        acc = float32(0.0)
        for k in range(a.shape[1]):
            acc += a[m, k] * weights[k, n]
        c[m, n] = acc


def prepare(b, problem):
    WEIGHTS[: problem.K, : problem.N] = b.copy_to_host()
    return b


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // 16), -(-M // 8)), (16, 8)](a, b, c)
