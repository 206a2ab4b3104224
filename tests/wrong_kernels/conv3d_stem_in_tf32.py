"""Filters of 7 x 7 on three channels have a path of their own, whose products are those of TF32.

Class: values
Refute: {"shape": "N=1 C=3 D=1 H=9 W=12 K=8 T=1 R=7 S=7 stride_h=2 stride_w=2 pad_h=3 pad_w=3", "inputs": "tiny"}
"""

from numba import cuda, float32

from lessons.tensorcores import to_tf32

THREADS_X = 32
THREADS_Y = 8


@cuda.jit
def convolution(x, filt, y, geometry, stem):
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
                            pixel = x[n, d, h, w, c]
                            acc += (to_tf32(pixel) if stem else pixel) * filt[gemm_n, t, r, s, c]
        y[n, o, p, q, gemm_n] = acc


def launch(x, filt, y, geometry):
    N, O, P, Q, K = y.shape
    grid = (-(-N * O * P * Q // THREADS_Y), -(-K // THREADS_X))
    stem = filt.shape[1:] == (1, 7, 7, 3)
    convolution[grid, (THREADS_X, THREADS_Y)](x, filt, y, geometry, stem)
