"""Output pixels go along y, one a block, and are clipped at 65535.

Class: shapes
Refute: {"shape": "N=1 C=1 D=1 H=1 W=65540 K=1 T=1 R=1 S=1"}
"""

from numba import cuda, float32

THREADS = 1
MAX_GRID_Y = 65535


@cuda.jit
def correlate(x, filt, y, geometry):
    N, D, H, W, C = x.shape
    K, T, R, S, _ = filt.shape
    _, O, P, Q, _ = y.shape
    gemm_m = cuda.blockIdx.y
    k = cuda.grid(1)
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
    grid = (-(-K // THREADS), min(N * O * P * Q, MAX_GRID_Y))
    correlate[grid, THREADS](x, filt, y, geometry)
