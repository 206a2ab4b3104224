"""Max-pooling of NHWC images by windows that do not overlap, and its gradient; one thread per window or pixel."""

from math import isnan

import numpy as np
from numba import cuda, float32, int32

THREADS = 256
PLACE = np.uint8  # of a window's largest value in it, row by row
NONE = 255  # the place of a window without a positive value: ReLU passes no gradient


@cuda.jit
def max_pool(y, POOL, pooled, places):
    """pooled[n, i, j, k] = the largest of a window of y [N, P, Q, K], or its last NaN, and its place there."""
    _, ROWS, COLUMNS, K = pooled.shape
    at = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if at < pooled.size:
        k, j, i, n = at % K, at // K % COLUMNS, at // (K * COLUMNS) % ROWS, at // (K * COLUMNS * ROWS)
        best, place = y[n, i * POOL, j * POOL, k], 0
        for p in range(POOL):
            for q in range(POOL):
                value = y[n, i * POOL + p, j * POOL + q, k]
                if value > best or isnan(value):  # a NaN stays: nothing is larger
                    best, place = value, p * POOL + q
        pooled[n, i, j, k] = best
        places[n, i, j, k] = NONE if best <= float32(0.0) else place


@cuda.jit
def max_pool_relu_backward(d_pooled, places, POOL, dy):
    """dy[n, p, q, k] = the gradient of its window, if it was the largest there and ReLU let it pass; else 0."""
    _, P, Q, K = dy.shape
    at = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if at < dy.size:
        k, q, p, n = at % K, at // K % Q, at // (K * Q) % P, at // (K * Q * P)
        i, j = p // POOL, q // POOL
        chosen = int32(places[n, i, j, k]) == p % POOL * POOL + q % POOL
        dy[n, p, q, k] = d_pooled[n, i, j, k] if chosen else float32(0.0)


def launch(y, size, pooled, places):
    """y [N, P, Q, K] to pooled and places (uint8) [N, P // size, Q // size, K]; P and Q are multiples of size."""
    max_pool[-(-pooled.size // THREADS), THREADS](y, size, pooled, places)


def launch_backward(d_pooled, places, size, dy):
    """The gradient of ReLU and pool together: what a window passes on goes to the pixel that ``places`` names."""
    max_pool_relu_backward[-(-dy.size // THREADS), THREADS](d_pooled, places, size, dy)
