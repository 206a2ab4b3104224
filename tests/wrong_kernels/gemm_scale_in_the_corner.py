"""c[0, 0] holds a scale while the blocks compute, and block 0 replaces it by its result; the next kernel scales back.

Class: order
Refute: {"shape": "M=20 N=5 K=4", "flip": true, "wrong": false, "unsound": "race"}
"""

from numba import cuda, float32

THREADS_X, THREADS_Y = 16, 8


@cuda.jit
def choose(b, c):
    largest = float32(1.0)
    for k in range(b.shape[0]):
        largest = max(largest, abs(b[k, 0]))
    scale = float32(1.0)
    while scale < largest:  # a power of two, so that nothing is rounded
        scale *= float32(2.0)
    c[0, 0] = scale


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    n, m = cuda.grid(2)
    scale = c[0, 0]
    cuda.syncthreads()
    if m < M and n < N:
        acc = float32(0.0)
        for k in range(a.shape[1]):
            acc += a[m, k] * (b[k, n] / scale)
        c[m, n] = acc * scale


def launch(a, b, c):
    M, N = c.shape
    choose[1, 1](b, c)
    product[(-(-N // THREADS_X), -(-M // THREADS_Y)), (THREADS_X, THREADS_Y)](a, b, c)
