r"""The shape of a tile is a number with a point.

Fault: shape-not-constant
Shown by: compiler
Says: the shape of a shared array takes THREADS_Y, and that is 8.0, a float
"""

from numba import cuda, float32

T = 16
THREADS_Y = 8.0


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    if m < M and n < N:
        acc = float32(0.0)
        part = cuda.shared.array((THREADS_Y, T), float32)  # <- here
        part[0, cuda.threadIdx.x] = acc
        for k in range(K):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // T), -(-M // T)), (T, T)](a, b, c)
