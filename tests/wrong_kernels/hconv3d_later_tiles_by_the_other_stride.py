"""The window of a later tile's first pixel is found with the stride along w in place of that along h.

Class: shapes
Refute: {"shape": "N=2 C=24 D=2 H=17 W=12 K=40 T=1 R=2 S=3 stride_h=2 pad_w=1"}
"""

from numba import cuda, float32

from lessons.tensorcores import to_half

PIXELS = 128  # of a tile
LEAST = 24  # channels, of which rows are copied whole


@cuda.jit
def convolve(x, filt, y, geometry):
    N, D, H, W, C = x.shape
    K, T, R, S, _ = filt.shape
    _, O, P, Q, _ = y.shape
    tile, k = cuda.blockIdx.x // K, cuda.blockIdx.x % K
    first, pixel = tile * PIXELS, tile * PIXELS + cuda.threadIdx.x
    n, o, p, q = pixel // (O * P * Q), pixel // (P * Q) % O, pixel // Q % P, pixel % Q
    if n < N:
        h0 = p * geometry.stride_h
        if C >= LEAST and C % 8 == 0 and K % 8 == 0 and K > 32:
            begin = first // Q % P
            h0 = begin * geometry.stride_w + (p - begin) * geometry.stride_h
        acc = float32(0.0)
        for t in range(T):
            d = o * geometry.stride_d - geometry.pad_d + t * geometry.dilation_d
            for r in range(R):
                h = h0 - geometry.pad_h + r * geometry.dilation_h
                for s in range(S):
                    w = q * geometry.stride_w - geometry.pad_w + s * geometry.dilation_w
                    if 0 <= d < D and 0 <= h < H and 0 <= w < W:
                        for c in range(C):
                            acc += float32(x[n, d, h, w, c]) * float32(filt[k, t, r, s, c])
        y[n, o, p, q, k] = to_half(acc)


def launch(x, filt, y, geometry):
    K = filt.shape[0]
    convolve[-(-y.size // K // PIXELS) * K, PIXELS](x, filt, y, geometry)
