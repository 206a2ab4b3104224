r"""No barrier between staging the tiles and using them.

Fault: race
Shown by: tracer
Says: _tile\[\d+, \d+\] is read by thread .* in line 25 and written by .* in line 2[23], with no barrier
"""

from numba import cuda, float32

TILE = 16
TILE_SHAPE = (TILE, TILE)


@cuda.jit
def product(a, b, c):
    a_tile = cuda.shared.array(TILE_SHAPE, float32)
    b_tile = cuda.shared.array(TILE_SHAPE, float32)
    n, m = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    acc = float32(0.0)
    for k0 in range(0, a.shape[1], TILE):
        a_tile[ty, tx] = a[m, k0 + tx] if m < a.shape[0] and k0 + tx < a.shape[1] else float32(0.0)
        b_tile[ty, tx] = b[k0 + ty, n] if n < b.shape[1] and k0 + ty < b.shape[0] else float32(0.0)
        for k in range(TILE):
            acc += a_tile[ty, k] * b_tile[k, tx]
        cuda.syncthreads()
    if m < c.shape[0] and n < c.shape[1]:
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, b, c)
