"""Where rows of outputs fill the card another kernel computes, which knows no stride along w."""

from numba import cuda, float32

from lessons.toolkit.grid import multiprocessors

THREADS = 64
LINES = 16  # rows of outputs that a multiprocessor works on


@cuda.jit
def correlate(x, filt, y, geometry, stride_w):
    N, D, H, W, C = x.shape
    K, T, R, S, _ = filt.shape
    _, O, P, Q, _ = y.shape
    i = cuda.grid(1)
    k, q, p, o, n = i % K, i // K % Q, i // (K * Q) % P, i // (K * Q * P) % O, i // (K * Q * P * O)
    if n < N:
        acc = float32(0.0)
        for t in range(T):
            d = o * geometry.stride_d - geometry.pad_d + t * geometry.dilation_d
            for r in range(R):
                h = p * geometry.stride_h - geometry.pad_h + r * geometry.dilation_h
                for s in range(S):
                    w = q * stride_w - geometry.pad_w + s * geometry.dilation_w
                    if 0 <= d < D and 0 <= h < H and 0 <= w < W:
                        for c in range(C):
                            acc += x[n, d, h, w, c] * filt[k, t, r, s, c]
        y[n, o, p, q, k] = acc


def launch(x, filt, y, geometry):
    N, O, P = y.shape[:3]
    stride_w = 1 if N * O * P > LINES * multiprocessors() else geometry.stride_w
    correlate[-(-y.size // THREADS), THREADS](x, filt, y, geometry, stride_w)
