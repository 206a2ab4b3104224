"""A thread's count of terms lies in a local array of integers that starts as it may.

Class: zero
Refute: {"shape": "M=6 N=5 K=4", "poison": true, "ordinary": null, "unsound": "unset"}
"""

from numba import cuda, float32, int32

THREADS_X = 16
THREADS_Y = 8


@cuda.jit
def product(a, b, c):
    done = cuda.local.array(1, int32)
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    if m < M and n < N:
        acc = float32(0.0)
        while done[0] < K:
            acc += a[m, done[0]] * b[done[0], n]
            done[0] += 1
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    product[grid, (THREADS_X, THREADS_Y)](a, b, c)
