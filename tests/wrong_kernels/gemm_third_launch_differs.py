"""Every third launch drops the last term, as from buffers that alternate out of step.

Expect: unstable
Says: elements differ between launches on equal inputs: a race
"""

from numba import cuda, float32

THREADS_X = 16
THREADS_Y = 8

launches = []


@cuda.jit
def product(a, b, c, K):
    M, N = c.shape
    n, m = cuda.grid(2)
    if m < M and n < N:
        acc = float32(0.0)
        for k in range(K):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    launches.append(grid)
    K = a.shape[1] - (len(launches) % 3 == 0)
    product[grid, (THREADS_X, THREADS_Y)](a, b, c, K)
