"""Blocks add their parts of the sum to dfilt one after the other, as they think: a read, an addition and a store."""

from numba import cuda, float32

THREADS_X = 8
THREADS_Y = 16


@cuda.jit
def clear(dfilt):
    K, T, R, S, C = dfilt.shape
    gemm_n = cuda.blockIdx.x * THREADS_X + cuda.threadIdx.x
    k = cuda.blockIdx.y * THREADS_Y + cuda.threadIdx.y
    if gemm_n < T * R * S * C and k < K:
        dfilt[k, gemm_n // (R * S * C), gemm_n // (S * C) % R, gemm_n // C % S, gemm_n % C] = float32(0.0)


@cuda.jit
def gradient(x, dy, dfilt, geometry):
    N, D, H, W, C = x.shape
    K, T, R, S, _ = dfilt.shape
    _, O, P, Q, _ = dy.shape
    gemm_n = cuda.blockIdx.x * THREADS_X + cuda.threadIdx.x
    k = cuda.blockIdx.y * THREADS_Y + cuda.threadIdx.y
    t = gemm_n // (R * S * C)
    r = gemm_n // (S * C) % R
    s = gemm_n // C % S
    c = gemm_n % C
    n = cuda.blockIdx.z
    if t < T and k < K:
        acc = float32(0.0)
        for o in range(O):
            d = o * geometry.stride_d - geometry.pad_d + t * geometry.dilation_d
            for p in range(P):
                h = p * geometry.stride_h - geometry.pad_h + r * geometry.dilation_h
                for q in range(Q):
                    w = q * geometry.stride_w - geometry.pad_w + s * geometry.dilation_w
                    if 0 <= d < D and 0 <= h < H and 0 <= w < W:
                        acc += x[n, d, h, w, c] * dy[n, o, p, q, k]
        dfilt[k, t, r, s, c] += acc


def launch(x, dy, dfilt, geometry):
    K, T, R, S, C = dfilt.shape
    grid = (-(-T * R * S * C // THREADS_X), -(-K // THREADS_Y))
    clear[grid, (THREADS_X, THREADS_Y)](dfilt)
    gradient[(*grid, x.shape[0]), (THREADS_X, THREADS_Y)](x, dy, dfilt, geometry)
