"""A thread has one filter at one output pixel, and short names."""

from numba import cuda, float32

TX, TY = 8, 16


@cuda.jit
def convolve(x, filt, y, g):
    N, D, H, W, C = x.shape
    K, T, R, S, _ = filt.shape
    _, O, P, Q, _ = y.shape
    row = cuda.blockIdx.x * TY + cuda.threadIdx.y
    k = cuda.blockIdx.y * TX + cuda.threadIdx.x
    n, o, p, q = row // (O * P * Q), row // (P * Q) % O, row // Q % P, row % Q
    if n < N and k < K:
        acc = float32(0.0)
        for t in range(T):
            d = o * g.stride_d - g.pad_d + t * g.dilation_d
            for r in range(R):
                h = p * g.stride_h - g.pad_h + r * g.dilation_h
                for s in range(S):
                    w = q * g.stride_w - g.pad_w + s * g.dilation_w
                    if 0 <= d < D and 0 <= h < H and 0 <= w < W:
                        for c in range(C):
                            acc += x[n, d, h, w, c] * filt[k, t, r, s, c]
        y[n, o, p, q, k] = acc


def launch(x, filt, y, geometry):
    N, O, P, Q, K = y.shape
    convolve[(-(-N * O * P * Q // TY), -(-K // TX)), (TX, TY)](x, filt, y, geometry)
