"""A signed plus an unsigned 64-bit integer is a float64, which is no index.

Fault: float-index
Says: float64
"""

from numba import cuda, float32, uint64

TILE = 16


@cuda.jit
def product(a, b, c):
    n, m = cuda.grid(2)
    row = uint64(cuda.threadIdx.y) + cuda.blockIdx.y * cuda.blockDim.y
    if m < c.shape[0] and n < c.shape[1]:
        acc = float32(0.0)
        for k in range(a.shape[1]):
            acc += a[row, k] * b[k, n]  # <- here
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, b, c)
