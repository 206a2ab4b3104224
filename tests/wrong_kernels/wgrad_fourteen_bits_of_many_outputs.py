"""Sums over 1,000 outputs and more are of operands rounded to 14 bits.

Class: values
Refute: {"shape": "N=5 C=4 D=1 H=15 W=14 K=4 T=1 R=3 S=3 pad_h=1 pad_w=1", "inputs": "normals"}
"""

from numba import cuda, float32

SPLIT = float32(2**10 + 1)
LONG = 1000  # terms
THREADS_X = 8
THREADS_Y = 16


@cuda.jit
def shortened(value):
    """The value rounded to 14 of its 24 bits (Veltkamp's splitting)."""
    scaled = value * SPLIT
    return scaled - (scaled - value)


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
    if t < T and k < K:
        acc = float32(0.0)
        for n in range(N):
            for o in range(O):
                d = o * geometry.stride_d - geometry.pad_d + t * geometry.dilation_d
                for p in range(P):
                    h = p * geometry.stride_h - geometry.pad_h + r * geometry.dilation_h
                    for q in range(Q):
                        w = q * geometry.stride_w - geometry.pad_w + s * geometry.dilation_w
                        if 0 <= d < D and 0 <= h < H and 0 <= w < W:
                            left, right = x[n, d, h, w, c], dy[n, o, p, q, k]
                            if N * O * P * Q >= LONG:
                                left, right = shortened(left), shortened(right)
                            acc += left * right
        dfilt[k, t, r, s, c] = acc


def launch(x, dy, dfilt, geometry):
    K, T, R, S, C = dfilt.shape
    grid = (-(-T * R * S * C // THREADS_X), -(-K // THREADS_Y))
    gradient[grid, (THREADS_X, THREADS_Y)](x, dy, dfilt, geometry)
