"""Filters of 1 x 1 at a stride of 2 have a path of their own, which reads the first image for all.

Class: shapes
Refute: {"shape": "N=2 C=5 D=1 H=7 W=7 K=3 T=1 R=1 S=1 stride_h=2 stride_w=2"}
"""

from numba import cuda, float32

THREADS_X = 32
THREADS_Y = 8


@cuda.jit
def convolution(x, filt, y, geometry, images):
    N, D, H, W, C = x.shape
    K, T, R, S, _ = filt.shape
    _, O, P, Q, _ = y.shape
    gemm_m = cuda.blockIdx.x * THREADS_Y + cuda.threadIdx.y
    gemm_n = cuda.blockIdx.y * THREADS_X + cuda.threadIdx.x
    n = gemm_m // (O * P * Q)
    o = gemm_m // (P * Q) % O
    p = gemm_m // Q % P
    q = gemm_m % Q
    if n < N and gemm_n < K:
        acc = float32(0.0)
        for t in range(T):
            d = o * geometry.stride_d - geometry.pad_d + t * geometry.dilation_d
            for r in range(R):
                h = p * geometry.stride_h - geometry.pad_h + r * geometry.dilation_h
                for s in range(S):
                    w = q * geometry.stride_w - geometry.pad_w + s * geometry.dilation_w
                    if 0 <= d < D and 0 <= h < H and 0 <= w < W:
                        for c in range(C):
                            acc += x[n % images, d, h, w, c] * filt[gemm_n, t, r, s, c]
        y[n, o, p, q, gemm_n] = acc


def launch(x, filt, y, geometry):
    N, O, P, Q, K = y.shape
    grid = (-(-N * O * P * Q // THREADS_Y), -(-K // THREADS_X))
    pointwise = filt.shape[1:4] == (1, 1, 1) and geometry[1:6] == (2, 2, 0, 0, 0)
    convolution[grid, (THREADS_X, THREADS_Y)](x, filt, y, geometry, 1 if pointwise else N)
