"""A block stages the taps of its filter, some channels at a time."""

from numba import cuda, float32

BLOCK = 32
CHANNELS = 4


@cuda.jit
def correlate(x, filt, y, geometry):
    taps = cuda.shared.array(CHANNELS, float32)
    N, D, H, W, C = x.shape
    K, T, R, S, _ = filt.shape
    _, O, P, Q, _ = y.shape
    thread = cuda.threadIdx.x
    gemm_m = cuda.blockIdx.x // K * BLOCK + thread
    k = cuda.blockIdx.x % K
    n = gemm_m // (O * P * Q)
    acc = float32(0.0)
    for tap in range(T * R * S):
        t, r, s = tap // (R * S), tap // S % R, tap % S
        d = gemm_m // (P * Q) % O * geometry.stride_d - geometry.pad_d + t * geometry.dilation_d
        h = gemm_m // Q % P * geometry.stride_h - geometry.pad_h + r * geometry.dilation_h
        w = gemm_m % Q * geometry.stride_w - geometry.pad_w + s * geometry.dilation_w
        inside = n < N and 0 <= d < D and 0 <= h < H and 0 <= w < W
        for c0 in range(0, C, CHANNELS):
            if thread < CHANNELS:
                taps[thread] = filt[k, t, r, s, c0 + thread] if c0 + thread < C else float32(0.0)
            cuda.syncthreads()
            for c in range(min(CHANNELS, C - c0)):
                if inside:
                    acc += x[n, d, h, w, c0 + c] * taps[c]
            cuda.syncthreads()
    if n < N:
        y[n, gemm_m // (P * Q) % O, gemm_m // Q % P, gemm_m % Q, k] = acc


def launch(x, filt, y, geometry):
    N, O, P, Q, K = y.shape
    correlate[-(-N * O * P * Q // BLOCK) * K, BLOCK](x, filt, y, geometry)
