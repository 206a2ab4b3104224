"""How far each tap lies from the first is kept in a table."""

import numpy as np
from numba import cuda, float32

THREADS_X = 8
THREADS_Y = 16


def workspace(problem):
    g = problem.geometry
    rows = []
    for t in range(problem.T):
        for r in range(problem.R):
            for s in range(problem.S):
                d, h, w = t * g.dilation_d, r * g.dilation_h, s * g.dilation_w
                rows.append((d, h, w, ((d * problem.H + h) * problem.W + w) * problem.C))
    return cuda.to_device(np.array(rows, np.int64))


@cuda.jit
def correlate(pixels, taps, y, extents, filter_extents, geometry, table):
    N, D, H, W, C = extents
    K, T, R, S, _ = filter_extents
    _, O, P, Q, _ = y.shape
    gemm_m = cuda.blockIdx.x * THREADS_Y + cuda.threadIdx.y
    k = cuda.blockIdx.y * THREADS_X + cuda.threadIdx.x
    n = gemm_m // (O * P * Q)
    d0 = gemm_m // (P * Q) % O * geometry.stride_d - geometry.pad_d
    h0 = gemm_m // Q % P * geometry.stride_h - geometry.pad_h
    w0 = gemm_m % Q * geometry.stride_w - geometry.pad_w
    if n < N and k < K:
        corner = (((n * D + d0) * H + h0) * W + w0) * C
        acc = float32(0.0)
        for tap in range(T * R * S):
            d, h, w = d0 + table[tap, 0], h0 + table[tap, 1], w0 + table[tap, 2]
            if 0 <= d < D and 0 <= h < H and 0 <= w < W:
                for c in range(C):
                    acc += pixels[corner + table[tap, 3] + c] * taps[(k * T * R * S + tap) * C + c]
        y[n, gemm_m // (P * Q) % O, gemm_m // Q % P, gemm_m % Q, k] = acc


def launch(x, filt, y, geometry, table):
    N, O, P, Q, K = y.shape
    grid = (-(-N * O * P * Q // THREADS_Y), -(-K // THREADS_X))
    pixels, taps = x.reshape(x.size), filt.reshape(filt.size)
    correlate[grid, (THREADS_X, THREADS_Y)](pixels, taps, y, x.shape, filt.shape, geometry, table)
