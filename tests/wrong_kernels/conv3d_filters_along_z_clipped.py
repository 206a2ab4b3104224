"""Filters go along z, and those beyond 65535 are left out.

Class: shapes
Refute: {"shape": "N=1 C=1 D=1 H=1 W=1 K=65537 T=1 R=1 S=1"}
"""

from numba import cuda, float32

THREADS = 1
MAX_GRID_Z = 65535


@cuda.jit
def correlate(x, filt, y, geometry):
    N, D, H, W, C = x.shape
    K, T, R, S, _ = filt.shape
    _, O, P, Q, _ = y.shape
    gemm_m = cuda.grid(1)
    k = cuda.blockIdx.z
    n = gemm_m // (O * P * Q)
    o = gemm_m // (P * Q) % O
    p = gemm_m // Q % P
    q = gemm_m % Q
    if n < N and k < K:
        acc = float32(0.0)
        for t in range(T):
            d = o * geometry.stride_d - geometry.pad_d + t * geometry.dilation_d
            for r in range(R):
                h = p * geometry.stride_h - geometry.pad_h + r * geometry.dilation_h
                for s in range(S):
                    w = q * geometry.stride_w - geometry.pad_w + s * geometry.dilation_w
                    if 0 <= d < D and 0 <= h < H and 0 <= w < W:
                        for c in range(C):
                            acc += x[n, d, h, w, c] * filt[k, t, r, s, c]
        y[n, o, p, q, k] = acc


def launch(x, filt, y, geometry):
    N, O, P, Q, K = y.shape
    grid = (-(-N * O * P * Q // THREADS), 1, min(K, MAX_GRID_Z))
    correlate[grid, THREADS](x, filt, y, geometry)
