r"""No barrier between staging the tiles and using them: one warp stages while the others multiply.

Expect: unsound
Says: in line \d+ and written by thread .*, with no barrier between
Expect on GPU: unstable or wrong
Says on GPU: differ between launches|elements are wrong
"""

from numba import cuda, float32

TILE = 32
STAGING_WARP = TILE - 1


@cuda.jit
def product(a, b, c):
    a_tile = cuda.shared.array((TILE, TILE), float32)
    b_tile = cuda.shared.array((TILE, TILE), float32)
    M, N = c.shape
    K = a.shape[1]
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    n, m = cuda.grid(2)
    block_m = m - ty
    acc = float32(0.0)
    for start in range(0, K, TILE):
        if ty == STAGING_WARP:
            for row in range(TILE):
                a_tile[row, tx] = float32(0.0)
                b_tile[row, tx] = float32(0.0)
                if block_m + row < M and start + tx < K:
                    a_tile[row, tx] = a[block_m + row, start + tx]
                if start + row < K and n < N:
                    b_tile[row, tx] = b[start + row, n]
        # here cuda.syncthreads() is missing
        for k in range(TILE):
            acc += a_tile[ty, k] * b_tile[k, tx]
        cuda.syncthreads()
    if m < M and n < N:
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, b, c)
