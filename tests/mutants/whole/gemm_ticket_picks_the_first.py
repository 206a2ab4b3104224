"""The block that draws ticket 0 assigns, the others add at once, whether it has stored by then or not."""

import numpy as np
from numba import cuda, float32

SPLIT_K = 4
THREADS_X, THREADS_Y = 16, 8


@cuda.jit
def clear(tickets):
    if cuda.grid(1) < tickets.size:
        tickets[cuda.grid(1)] = 0


@cuda.jit
def product(a, b, c, tickets):
    n, m = cuda.grid(2)
    if m < c.shape[0] and n < c.shape[1]:
        ticket = cuda.atomic.add(tickets, m * c.shape[1] + n, 1)
        acc = float32(0.0)
        for k in range(cuda.blockIdx.z, a.shape[1], SPLIT_K):
            acc += a[m, k] * b[k, n]
        if ticket == 0:
            c[m, n] = acc
        else:
            cuda.atomic.add(c, (m, n), acc)


def workspace(problem):
    return cuda.device_array(problem.M * problem.N, np.int32)


def launch(a, b, c, tickets):
    M, N = c.shape
    clear[-(-tickets.size // 128), 128](tickets)
    product[(-(-N // THREADS_X), -(-M // THREADS_Y), SPLIT_K), (THREADS_X, THREADS_Y)](a, b, c, tickets)
