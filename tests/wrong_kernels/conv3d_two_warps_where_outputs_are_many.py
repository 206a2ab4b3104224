"""Where outputs are many a block has two warps, and waits for its taps as if it had one.

Class: sound
Refute: {"shape": "N=2 C=4 D=1 H=48 W=95 K=100 T=1 R=1 S=2 pad_w=1", "unsound": "race"}
"""

from numba import cuda, float32

MOST = 64  # taps that are staged at a time
MANY = 500_000


@cuda.jit
def convolve(x, filt, y, geometry):
    taps = cuda.shared.array(MOST, float32)
    N, D, H, W, C = x.shape
    K, T, R, S, _ = filt.shape
    _, O, P, Q, _ = y.shape
    thread, k = cuda.threadIdx.x, cuda.blockIdx.x % K
    pixel = cuda.blockIdx.x // K * cuda.blockDim.x + thread
    n, o, p, q = pixel // (O * P * Q), pixel // (P * Q) % O, pixel // Q % P, pixel % Q
    acc = float32(0.0)
    for first in range(0, T * R * S * C, MOST):
        count = min(MOST, T * R * S * C - first)
        for i in range(thread, count, cuda.blockDim.x):
            at = first + i
            taps[i] = filt[k, at // (R * S * C), at // (S * C) % R, at // C % S, at % C]
        cuda.syncwarp()
        for i in range(count):
            at = first + i
            d = o * geometry.stride_d - geometry.pad_d + at // (R * S * C) * geometry.dilation_d
            h = p * geometry.stride_h - geometry.pad_h + at // (S * C) % R * geometry.dilation_h
            w = q * geometry.stride_w - geometry.pad_w + at // C % S * geometry.dilation_w
            if n < N and 0 <= d < D and 0 <= h < H and 0 <= w < W:
                acc += taps[i] * x[n, d, h, w, at % C]
        cuda.syncwarp()
    if n < N:
        y[n, o, p, q, k] = acc


def launch(x, filt, y, geometry):
    K = filt.shape[0]
    threads = 64 if y.size > MANY else 32
    convolve[-(-y.size // K // threads) * K, threads](x, filt, y, geometry)
