"""Sums over 1,000 taps and more, all filters together, are of operands rounded to 15 bits.

Class: values
Refute: {"shape": "N=1 C=6 D=1 H=4 W=5 K=114 T=1 R=3 S=3 pad_h=1 pad_w=1", "inputs": "normals"}
"""

from numba import cuda, float32

SPLIT = float32(2**9 + 1)
LONG = 1000  # terms
THREADS_X = 8
THREADS_Y = 16


@cuda.jit
def shortened(value):
    """The value rounded to 15 of its 24 bits (Veltkamp's splitting)."""
    scaled = value * SPLIT
    return scaled - (scaled - value)


@cuda.jit
def gradient(dy, filt, dx, geometry):
    N, D, H, W, C = dx.shape
    K, T, R, S, _ = filt.shape
    _, O, P, Q, _ = dy.shape
    gemm_m = cuda.blockIdx.x * THREADS_Y + cuda.threadIdx.y
    c = cuda.blockIdx.y * THREADS_X + cuda.threadIdx.x
    n = gemm_m // (D * H * W)
    d = gemm_m // (H * W) % D
    h = gemm_m // W % H
    w = gemm_m % W
    if n < N and c < C:
        acc = float32(0.0)
        for t in range(T):
            below_d = d + geometry.pad_d - t * geometry.dilation_d
            o = below_d // geometry.stride_d
            for r in range(R):
                below_h = h + geometry.pad_h - r * geometry.dilation_h
                p = below_h // geometry.stride_h
                for s in range(S):
                    below_w = w + geometry.pad_w - s * geometry.dilation_w
                    q = below_w // geometry.stride_w
                    met = (
                        o * geometry.stride_d == below_d
                        and p * geometry.stride_h == below_h
                        and q * geometry.stride_w == below_w
                    )
                    if met and 0 <= o < O and 0 <= p < P and 0 <= q < Q:
                        for k in range(K):
                            left, right = dy[n, o, p, q, k], filt[k, t, r, s, c]
                            if K * T * R * S >= LONG:
                                left, right = shortened(left), shortened(right)
                            acc += left * right
        dx[n, d, h, w, c] = acc


def launch(dy, filt, dx, geometry):
    N, D, H, W, C = dx.shape
    grid = (-(-N * D * H * W // THREADS_Y), -(-C // THREADS_X))
    gradient[grid, (THREADS_X, THREADS_Y)](dy, filt, dx, geometry)
