"""Exercise 05.1, write: which pixel is row gemm_m, which tap is column gemm_k?

The convolution is a matrix product whose A is never stored. Row gemm_m of A is the output pixel (n, o, p, q), the
last axis the fastest; column gemm_k is the tap and channel (t, r, s, c), in the same manner. Write both ways back.
Grade: python -m common grade 05.1
"""

from numba import cuda, float32

TILE = 16  # a block computes TILE rows x TILE filters, one output per thread
TILE_SHAPE = (TILE, TILE)


@cuda.jit
def conv3d_coordinates(x, filt, b, y, geometry):
    a_tile = cuda.shared.array(TILE_SHAPE, float32)
    b_tile = cuda.shared.array(TILE_SHAPE, float32)
    N, D, H, W, C = x.shape
    K, T, R, S, _ = filt.shape
    _, O, P, Q, _ = y.shape

    # locate
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    gemm_m = cuda.blockIdx.x * TILE + ty
    gemm_n = cuda.blockIdx.y * TILE + tx
    # >>> your code: 2 to 4 lines
    # n, o, p, q of row gemm_m; n may be N or more in the last block
    n, o = gemm_m // (O * P * Q), gemm_m // (P * Q) % O
    p, q = gemm_m // Q % P, gemm_m % Q
    # <<<

    acc = float32(0.0)
    for k0 in range(0, T * R * S * C, TILE):
        # stage: element (gemm_m, k0 + tx) of A, element (k0 + ty, gemm_n) of B
        a_tile[ty, tx] = float32(0.0)
        gemm_k = k0 + tx
        # >>> your code: 2 to 4 lines
        # t, r, s, c of column gemm_k; t may be T or more in the last tile
        t, r = gemm_k // (C * S * R), gemm_k // (C * S) % R
        s, c = gemm_k // C % S, gemm_k % C
        # <<<
        d = o * geometry.stride_d - geometry.pad_d + t * geometry.dilation_d
        h = p * geometry.stride_h - geometry.pad_h + r * geometry.dilation_h
        w = q * geometry.stride_w - geometry.pad_w + s * geometry.dilation_w
        if n < N and t < T and 0 <= d < D and 0 <= h < H and 0 <= w < W:
            a_tile[ty, tx] = x[n, d, h, w, c]
        b_k = k0 + ty
        inside = b_k < T * R * S * C and gemm_n < K
        b_tile[ty, tx] = b[gemm_n, b_k] if inside else float32(0.0)
        cuda.syncthreads()

        # multiply
        for k in range(TILE):
            acc += a_tile[ty, k] * b_tile[k, tx]
        cuda.syncthreads()

    # store
    if n < N and gemm_n < K:
        y[n, o, p, q, gemm_n] = acc


def launch(x, filt, y, geometry):
    N, O, P, Q, K = y.shape
    grid = (-(-N * O * P * Q // TILE), -(-K // TILE))
    b = filt.reshape(K, filt.size // K)  # a view: B is there already, column by column
    conv3d_coordinates[grid, (TILE, TILE)](x, filt, b, y, geometry)
