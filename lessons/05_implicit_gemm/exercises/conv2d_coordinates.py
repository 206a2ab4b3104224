"""Exercise 05.2, write: the same matrices in the other layout.

x[N, C, H, W] and filt[K, C, R, S], as in ECE408: pixels run fastest. So the filters are the rows of A, as they lie
in memory, and column gemm_n of B is the output pixel (n, p, q), the last axis the fastest. Row gemm_k of B is the
channel and tap that element gemm_k of a filter has. No padding, stride 1. Write n, p, q from gemm_n,
then c, r, s from gemm_k, then the element of B to stage.
Grade: python -m common grade 05.2
"""

from numba import cuda, float32

TILE = 16  # a block computes TILE filters x TILE pixels, one output per thread
TILE_SHAPE = (TILE, TILE)


@cuda.jit
def conv2d_coordinates(x, filt, a, y):
    a_tile = cuda.shared.array(TILE_SHAPE, float32)
    b_tile = cuda.shared.array(TILE_SHAPE, float32)
    N, K, P, Q = y.shape
    _, C, R, S = filt.shape
    GEMM_K = a.shape[1]

    # locate
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    gemm_m = cuda.blockIdx.y * TILE + ty
    gemm_n = cuda.blockIdx.x * TILE + tx
    # >>> your code: 2 lines
    # n, p, q of column gemm_n; n may be N or more in the last block
    n = p = q = 0
    # <<<

    acc = float32(0.0)
    for k0 in range(0, GEMM_K, TILE):
        # stage: element (gemm_m, k0 + tx) of A, element (k0 + ty, gemm_n) of B
        inside = gemm_m < K and k0 + tx < GEMM_K
        a_tile[ty, tx] = a[gemm_m, k0 + tx] if inside else float32(0.0)
        gemm_k = k0 + ty
        # >>> your code: 3 lines
        # c, r, s of row gemm_k, which may be GEMM_K or more in the last tile; then b_tile[ty, tx]
        # <<<
        cuda.syncthreads()

        # multiply
        for k in range(TILE):
            acc += a_tile[ty, k] * b_tile[k, tx]
        cuda.syncthreads()

    # store
    if n < N and gemm_m < K:
        y[n, gemm_m, p, q] = acc


def launch(x, filt, y):
    N, K, P, Q = y.shape
    grid = (-(-N * P * Q // TILE), -(-K // TILE))
    a = filt.reshape(K, filt.size // K)  # a view: A is there already, row by row
    conv2d_coordinates[grid, (TILE, TILE)](x, filt, a, y)
