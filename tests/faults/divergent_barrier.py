r"""Even and odd rows of threads wait at different barriers.

Fault: divergent-barrier
Shown by: tracer
Says: \d+ threads do not reach this barrier, which others wait at: they come to the one in line 26
"""

from numba import cuda, float32

TILE = 16
TILE_SHAPE = (TILE, TILE)


@cuda.jit
def product(a, b, c):
    a_tile = cuda.shared.array(TILE_SHAPE, float32)
    n, m = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    acc = float32(0.0)
    for k0 in range(0, a.shape[1], TILE):
        a_tile[ty, tx] = a[m, k0 + tx] if m < a.shape[0] and k0 + tx < a.shape[1] else float32(0.0)
        if m < c.shape[0] and n < c.shape[1]:
            cuda.syncthreads()  # <- here
            for k in range(min(TILE, a.shape[1] - k0)):
                acc += a_tile[ty, k] * b[k0 + k, n]
        cuda.syncthreads()
    if m < c.shape[0] and n < c.shape[1]:
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, b, c)
