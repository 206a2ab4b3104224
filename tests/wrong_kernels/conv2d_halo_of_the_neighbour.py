"""A block stores its rows of the unrolled image and reads its neighbour's; another kernel finishes.

Class: order
Refute: {"shape": "N=1 C=1 H=7 W=5 K=2 R=3 S=2", "flip": true}
"""

import numpy as np
from numba import cuda, float32

THREADS = 32


@cuda.jit
def sum_rows(x, filt, sums, y):
    """sums[k, n, h, q, r] is row r of filter k at row h of the image; y adds them down the rows."""
    N, K, P, Q = y.shape
    _, C, R, S = filt.shape
    H = x.shape[2]
    h, k, n = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
    for q in range(cuda.threadIdx.x, Q, THREADS):
        for r in range(R):
            acc = float32(0.0)
            for c in range(C):
                for s in range(S):
                    acc += x[n, c, h, q + s] * filt[k, c, r, s]
            sums[n, k, h, q, r] = acc
        if h >= R - 1:
            total = float32(0.0)
            for r in range(R):
                total += sums[n, k, h - R + 1 + r, q, r]
            sums[n, k, h, q, R] = total


@cuda.jit
def store(sums, y, last):
    N, K, P, Q = y.shape
    i = cuda.grid(1)
    if i < y.size:
        q, p, k, n = i % Q, i // Q % P, i // (P * Q) % K, i // (P * Q * K)
        y[n, k, p, q] = sums[n, k, p + last, q, last + 1]


def workspace(problem):
    return cuda.device_array((problem.N, problem.K, problem.H, problem.Q, problem.R + 1), np.float32)


def launch(x, filt, y, sums):
    N, K, P, Q = y.shape
    sum_rows[(x.shape[2], K, N), THREADS](x, filt, sums, y)
    store[-(-y.size // THREADS), THREADS](sums, y, filt.shape[2] - 1)
