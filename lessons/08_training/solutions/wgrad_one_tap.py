"""Exercise 08.12, write: filters of one tap, from a blank file.

With T = R = S = 1 and no padding the gradient of the filter is a product of two matrices that lie in memory:
dfilt[k, 0, 0, 0, c] sums over n, o, p, q dy[n, o, p, q, k] * x[n, o * stride_d, p * stride_h, q * stride_w, c]. Write
kernel and launch, with tiles in shared memory: at most 0.2 reads of global memory for each multiply-add at N=2 C=32
D=1 H=4 W=8 K=32, and at most 8 sectors and 2 wavefronts for each request. Only such shapes are asked for, of any
extents and strides. geometry has stride_d, stride_h and stride_w.
Grade: python -m common grade 08.12
"""

from numba import cuda, float32

TILE = 16


# >>> your code: 26 lines
SHAPE = (TILE, TILE)


@cuda.jit
def wgrad_one_tap(x, dy, dfilt, geometry):
    a_tile = cuda.shared.array(SHAPE, float32)
    b_tile = cuda.shared.array(SHAPE, float32)
    C = x.shape[4]
    N, O, P, Q, K = dy.shape
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    c0, k0 = cuda.blockIdx.x * TILE, cuda.blockIdx.y * TILE

    acc = float32(0.0)
    for first in range(0, N * O * P * Q, TILE):
        gemm_k = first + ty
        q, p = gemm_k % Q, gemm_k // Q % P
        o, n = gemm_k // (Q * P) % O, gemm_k // (Q * P * O)
        d, h, w = o * geometry.stride_d, p * geometry.stride_h, q * geometry.stride_w
        a_tile[ty, tx] = dy[n, o, p, q, k0 + tx] if n < N and k0 + tx < K else float32(0.0)
        b_tile[ty, tx] = x[n, d, h, w, c0 + tx] if n < N and c0 + tx < C else float32(0.0)
        cuda.syncthreads()
        for i in range(TILE):
            acc += a_tile[i, ty] * b_tile[i, tx]
        cuda.syncthreads()

    if k0 + ty < K and c0 + tx < C:
        dfilt[k0 + ty, 0, 0, 0, c0 + tx] = acc


def launch(x, dy, dfilt, geometry):
    K, _, _, _, C = dfilt.shape
    wgrad_one_tap[(-(-C // TILE), -(-K // TILE)), (TILE, TILE)](x, dy, dfilt, geometry)


# <<<
