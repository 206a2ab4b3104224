"""Shared arrays of 256 KiB.

Fault: shared-memory
Shown by: both
Says: the shared arrays take 262144 bytes: a block has at most 49152
"""

from numba import cuda, float32

TILE = 16
SHAPE = (256, 256)


@cuda.jit
def product(a, b, c):
    tile = cuda.shared.array(SHAPE, float32)  # <- here
    n, m = cuda.grid(2)
    acc = float32(0.0)
    if m < c.shape[0] and n < c.shape[1]:
        for k in range(a.shape[1]):
            acc += a[m, k] * b[k, n]
    tile[cuda.threadIdx.y, cuda.threadIdx.x] = acc
    cuda.syncthreads()
    if m < c.shape[0] and n < c.shape[1]:
        c[m, n] = tile[cuda.threadIdx.y, cuda.threadIdx.x]


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, b, c)
