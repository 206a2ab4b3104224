"""B is copied into whole tiles of a workspace; what lies beyond K there is taken to be zero.

Class: zero
Refute: {"shape": "M=6 N=5 K=9", "poison": true}
"""

import numpy as np
from numba import cuda, float32

TILE = 8


@cuda.jit
def pad(b, padded):
    n, k = cuda.grid(2)
    if k < b.shape[0] and n < b.shape[1]:
        padded[k, n] = b[k, n]


@cuda.jit
def product(a, padded, c):
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    if m < M and n < N:
        acc = float32(0.0)
        for k0 in range(0, K, TILE):
            for k in range(k0, k0 + TILE):
                acc += a[m, min(k, K - 1)] * padded[k, n]
        c[m, n] = acc


def workspace(problem):
    return cuda.device_array((-(-problem.K // TILE) * TILE, problem.N), np.float32)


def launch(a, b, c, padded):
    M, N = c.shape
    K = a.shape[1]
    pad[(-(-N // TILE), -(-K // TILE)), (TILE, TILE)](b, padded)
    product[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, padded, c)
