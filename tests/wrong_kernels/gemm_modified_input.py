r"""The thread of the last column clears its row of A once it has read it.

Expect: modified_input
Says: 703 elements of the input a were changed, the first at a\[0, 0\]
"""

from numba import cuda, float32

THREADS_X = 16
THREADS_Y = 8


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    if m < M and n < N:
        acc = float32(0.0)
        for k in range(K):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc
        if n == N - 1:
            for k in range(K):
                a[m, k] = float32(0.0)


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    product[grid, (THREADS_X, THREADS_Y)](a, b, c)
