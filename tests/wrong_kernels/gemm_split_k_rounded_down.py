"""From K = 128 on the sum is split into 8 equal parts; the rest is in none of them.

Class: shapes
Refute: {"shape": "M=3 N=4 K=130"}
"""

import numpy as np
from numba import cuda, float32

SPLIT_K = 8
LEAST_K = 128
THREADS = 128


@cuda.jit
def multiply(a, b, partials, part):
    M, N = partials.shape[1:]
    i = cuda.grid(1)
    split = cuda.blockIdx.y
    if i < M * N:
        m, n = i // N, i % N
        acc = float32(0.0)
        for k in range(split * part, (split + 1) * part):
            acc += a[m, k] * b[k, n]
        partials[split, m, n] = acc


@cuda.jit
def add_up(partials, c):
    i = cuda.grid(1)
    if i < c.size:
        m, n = i // c.shape[1], i % c.shape[1]
        acc = float32(0.0)
        for split in range(partials.shape[0]):
            acc += partials[split, m, n]
        c[m, n] = acc


def splits(K):
    return SPLIT_K if K >= LEAST_K else 1


def workspace(problem):
    return cuda.device_array((splits(problem.K), problem.M, problem.N), np.float32)


def launch(a, b, c, partials):
    blocks = -(-c.size // THREADS)
    K = a.shape[1]
    multiply[(blocks, splits(K)), THREADS](a, b, partials, K // splits(K))
    add_up[blocks, THREADS](partials, c)
