"""A block sets a plain flag when its part is stored, and the last block waits for it in a loop.

Class: sound
Refute: {"shape": "M=4 N=5 K=6", "unsound": "race"}
"""

import numpy as np
from numba import cuda, float32

THREADS = 64


@cuda.jit
def clear(flags):
    flags[0] = 0


@cuda.jit
def product(a, b, c, part, flags):
    N = c.shape[1]
    K = a.shape[1]
    half = K // 2
    first = cuda.blockIdx.x == 0
    for i in range(cuda.threadIdx.x, c.size, THREADS):
        acc = float32(0.0)
        for k in range(0 if first else half, half if first else K):
            acc += a[i // N, k] * b[k, i % N]
        if first:
            part[i] = acc
        else:
            c[i // N, i % N] = acc
    cuda.syncthreads()
    if first:
        if cuda.threadIdx.x == 0:
            flags[0] = 1
    else:
        turns = 0
        while flags[0] == 0 and turns < 1000:
            turns += 1
        for i in range(cuda.threadIdx.x, c.size, THREADS):
            c[i // N, i % N] += part[i]


def workspace(problem):
    return cuda.device_array(problem.M * problem.N, np.float32), cuda.device_array(1, np.int32)


def launch(a, b, c, scratch):
    part, flags = scratch
    clear[1, 1](flags)
    product[2, THREADS](a, b, c, part, flags)
