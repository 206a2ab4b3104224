"""A is copied into scratch padded to whole tiles, kept while large enough: its padding holds an earlier matrix.

Class: state
Refute: {"shape": "M=16 N=5 K=32", "then": ["M=7 N=5 K=9"], "ordinary": "M=16 N=5 K=16"}
"""

import numpy as np
from numba import cuda, float32

TILE = 16

scratch = {}


@cuda.jit
def pad(source, target, width):
    j, i = cuda.grid(2)
    if i < source.shape[0] and j < source.shape[1]:
        target[i * width + j] = source[i, j]


@cuda.jit
def product(a, b, c, width):
    M, N = c.shape
    K = b.shape[0]
    n, m = cuda.grid(2)
    if m < M and n < N:
        acc = float32(0.0)
        for k in range(width):
            acc += a[m * width + k] * b[min(k, K - 1), n]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    width = -(-K // TILE) * TILE
    if scratch.get("size", 0) < M * width:
        scratch.update(size=M * width, a=cuda.to_device(np.zeros(M * width, np.float32)))
    pad[(-(-K // TILE), -(-M // TILE)), (TILE, TILE)](a, scratch["a"], width)
    product[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](scratch["a"], b, c, width)
