"""Kernels of the layered network beside its convolutions, of one thread per window, pixel or digit."""

from math import exp, isnan, log

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


@cuda.jit
def relu_backward(y, dy):
    """dy = 0 where y, the output of ReLU, is; both are flat."""
    at = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if at < dy.size and y[at] == float32(0.0):
        dy[at] = float32(0.0)


@cuda.jit
def softmax_cross_entropy(logits, classes, counter, d_logits, losses, said):
    """Of each digit, its loss to row counter[0] of losses, the gradient of the batch's mean loss, the answer."""
    N, CLASSES = logits.shape
    n = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if n < N:
        best = 0
        for k in range(1, CLASSES):
            if logits[n, k] > logits[n, best]:
                best = k
        total = float32(0.0)
        for k in range(CLASSES):
            total += float32(exp(logits[n, k] - logits[n, best]))
        right = classes[n]
        for k in range(CLASSES):
            share = float32(exp(logits[n, k] - logits[n, best])) / total
            d_logits[n, k] = (share - (float32(1.0) if k == right else float32(0.0))) / float32(N)
        losses[counter[0] * N + n] = float32(log(total)) - (logits[n, right] - logits[n, best])
        said[n] = best


def launch(kernel, count, *arguments):
    """Launch one of these kernels with a thread for each of ``count``."""
    kernel[-(-count // THREADS), THREADS](*arguments)
