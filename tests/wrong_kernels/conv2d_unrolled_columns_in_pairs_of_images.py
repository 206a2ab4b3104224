"""The unrolled matrix holds two images; of three or more the second pair is read where the first was.

Class: shapes
Refute: {"shape": "N=3 C=2 H=4 W=5 K=3 R=2 S=2"}
"""

import numpy as np
from numba import cuda, float32

IMAGES = 2
THREADS = 128


@cuda.jit
def unroll(x, columns, R, S, first):
    """columns[(c, r, s), (n, p, q)] of IMAGES images from `first` on."""
    N, C, H, W = x.shape
    P, Q = H - R + 1, W - S + 1
    i = cuda.grid(1)
    if i < columns.size:
        row, column = i // columns.shape[1], i % columns.shape[1]
        c, r, s = row // (R * S), row // S % R, row % S
        n, p, q = column // (P * Q), column // Q % P, column % Q
        if first + n < N:
            columns[row, column] = x[n if N > 2 else first + n, c, p + r, q + s]


@cuda.jit
def multiply(columns, filt, y, first):
    N, K, P, Q = y.shape
    _, C, R, S = filt.shape
    column = cuda.grid(1)
    k = cuda.blockIdx.y
    n, p, q = column // (P * Q), column // Q % P, column % Q
    if n < IMAGES and first + n < N:
        acc = float32(0.0)
        for row in range(C * R * S):
            acc += filt[k, row // (R * S), row // S % R, row % S] * columns[row, column]
        y[first + n, k, p, q] = acc


def workspace(problem):
    return cuda.device_array((problem.reduction, IMAGES * problem.P * problem.Q), np.float32)


def launch(x, filt, y, columns):
    N, K, P, Q = y.shape
    _, _, R, S = filt.shape
    for first in range(0, N, IMAGES):
        unroll[-(-columns.size // THREADS), THREADS](x, columns, R, S, first)
        multiply[(-(-columns.shape[1] // THREADS), K), THREADS](columns, filt, y, first)
