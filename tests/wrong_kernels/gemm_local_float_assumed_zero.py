"""Four sums of a thread lie in a local array, and the first is not set to zero.

Class: zero
Refute: {"shape": "M=6 N=5 K=4", "poison": true, "ordinary": null, "unsound": "unset"}
"""

from numba import cuda, float32

THREADS_X = 16
THREADS_Y = 8
SUMS = 4


@cuda.jit
def product(a, b, c):
    acc = cuda.local.array(SUMS, float32)
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    if m < M and n < N:
        for i in range(1, SUMS):
            acc[i] = float32(0.0)
        for k in range(K):
            acc[k % SUMS] += a[m, k] * b[k, n]
        c[m, n] = acc[0] + acc[1] + acc[2] + acc[3]


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    product[grid, (THREADS_X, THREADS_Y)](a, b, c)
