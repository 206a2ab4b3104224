"""From the fourth launch on, sums start from what the output holds.

Class: state
Refute: {"shape": "M=4 N=5 K=6", "launches": 4}
"""

from numba import cuda, float32

THREADS_X = 16
THREADS_Y = 8

earlier = {}


@cuda.jit
def product(a, b, c, known):
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    if m < M and n < N:
        acc = c[m, n] if known else float32(0.0)
        for k in range(K):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    turn = earlier[c.shape] = earlier.get(c.shape, 0) + 1
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    product[grid, (THREADS_X, THREADS_Y)](a, b, c, turn > 3)
