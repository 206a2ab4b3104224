"""A shared array's shape is read from an argument.

Fault: shape-not-constant
Shown by: compiler
Says: the shape of a shared array is not a constant
"""

from numba import cuda, float32

TILE = 16


@cuda.jit
def product(a, b, c):
    b_tile = cuda.shared.array(a.shape[1], float32)  # <- here
    n, m = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    acc = float32(0.0)
    for k0 in range(0, a.shape[1], TILE):
        b_tile[ty, tx] = b[k0 + ty, n] if k0 + ty < b.shape[0] and n < b.shape[1] else float32(0.0)
        cuda.syncthreads()
        for k in range(min(TILE, a.shape[1] - k0)):
            if m < a.shape[0]:
                acc += a[m, k0 + k] * b_tile[k, tx]
        cuda.syncthreads()
    if m < c.shape[0] and n < c.shape[1]:
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, b, c)
