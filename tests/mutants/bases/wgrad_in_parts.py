"""The sum is split in three, and a second kernel adds up the parts."""

import numpy as np
from numba import cuda, float32

THREADS_X = 8
THREADS_Y = 16
PARTS = 3


@cuda.jit
def part(x, dy, sums, geometry):
    N, D, H, W, C = x.shape
    _, K, T, R, S, _ = sums.shape
    _, O, P, Q, _ = dy.shape
    gemm_n = cuda.blockIdx.x * THREADS_X + cuda.threadIdx.x
    k = cuda.blockIdx.y * THREADS_Y + cuda.threadIdx.y
    t = gemm_n // (R * S * C)
    r = gemm_n // (S * C) % R
    s = gemm_n // C % S
    c = gemm_n % C
    number = cuda.blockIdx.z
    length = (N * O * P * Q + PARTS - 1) // PARTS
    if t < T and k < K:
        acc = float32(0.0)
        for gemm_k in range(number * length, min((number + 1) * length, N * O * P * Q)):
            n = gemm_k // (O * P * Q)
            d = gemm_k // (P * Q) % O * geometry.stride_d - geometry.pad_d + t * geometry.dilation_d
            h = gemm_k // Q % P * geometry.stride_h - geometry.pad_h + r * geometry.dilation_h
            w = gemm_k % Q * geometry.stride_w - geometry.pad_w + s * geometry.dilation_w
            if 0 <= d < D and 0 <= h < H and 0 <= w < W:
                acc += x[n, d, h, w, c] * dy[n, gemm_k // (P * Q) % O, gemm_k // Q % P, gemm_k % Q, k]
        sums[number, k, t, r, s, c] = acc


@cuda.jit
def add_up(sums, dfilt):
    K, T, R, S, C = dfilt.shape
    gemm_n = cuda.blockIdx.x * THREADS_X + cuda.threadIdx.x
    k = cuda.blockIdx.y * THREADS_Y + cuda.threadIdx.y
    t = gemm_n // (R * S * C)
    r = gemm_n // (S * C) % R
    s = gemm_n // C % S
    c = gemm_n % C
    if t < T and k < K:
        acc = float32(0.0)
        for number in range(PARTS):
            acc += sums[number, k, t, r, s, c]
        dfilt[k, t, r, s, c] = acc


def workspace(problem):
    return cuda.device_array((PARTS, *problem.output_shape), np.float32)


def launch(x, dy, dfilt, geometry, sums):
    K, T, R, S, C = dfilt.shape
    grid, threads = (-(-T * R * S * C // THREADS_X), -(-K // THREADS_Y)), (THREADS_X, THREADS_Y)
    part[(*grid, PARTS), threads](x, dy, sums, geometry)
    add_up[grid, threads](sums, dfilt)
