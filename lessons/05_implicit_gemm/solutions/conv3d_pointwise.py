"""Exercise 05.10, write: filters of one tap, from a blank file.

With T = R = S = 1 and no padding a convolution is a matrix product of pixels and filters: y[n, o, p, q, k] sums over
c x[n, o * stride_d, p * stride_h, q * stride_w, c] * filt[k, 0, 0, 0, c]. With strides, the rows of A are not the
pixels one after the other. Write kernel and launch, with tiles in shared memory: at most 0.2 reads of global memory
for each multiply-add at N=1 C=32 D=1 H=8 W=8 K=32, and at most 8 sectors and 2 wavefronts for each request. Only
such shapes are asked for, of any extents and strides. geometry has stride_d, stride_h and stride_w.
Grade: python -m common grade 05.10
"""

from numba import cuda, float32

TILE = 16


# >>> your code: 28 lines
A_SHAPE, B_SHAPE = (TILE, TILE), (TILE, TILE + 1)


@cuda.jit
def conv3d_pointwise(x, filt, y, geometry):
    a_tile = cuda.shared.array(A_SHAPE, float32)
    b_tile = cuda.shared.array(B_SHAPE, float32)
    C = x.shape[4]
    N, O, P, Q, K = y.shape
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    gemm_m = cuda.blockIdx.x * TILE + ty
    k0 = cuda.blockIdx.y * TILE
    q, p = gemm_m % Q, gemm_m // Q % P
    o, n = gemm_m // (Q * P) % O, gemm_m // (Q * P * O)
    d, h, w = o * geometry.stride_d, p * geometry.stride_h, q * geometry.stride_w

    acc = float32(0.0)
    for c0 in range(0, C, TILE):
        c = c0 + tx
        a_tile[ty, tx] = x[n, d, h, w, c] if n < N and c < C else float32(0.0)
        b_tile[ty, tx] = filt[k0 + ty, 0, 0, 0, c] if k0 + ty < K and c < C else float32(0.0)
        cuda.syncthreads()
        for i in range(TILE):
            acc += a_tile[ty, i] * b_tile[tx, i]
        cuda.syncthreads()

    if n < N and k0 + tx < K:
        y[n, o, p, q, k0 + tx] = acc


def launch(x, filt, y, geometry):
    N, O, P, Q, K = y.shape
    grid = (-(-N * O * P * Q // TILE), -(-K // TILE))
    conv3d_pointwise[grid, (TILE, TILE)](x, filt, y, geometry)


# <<<
