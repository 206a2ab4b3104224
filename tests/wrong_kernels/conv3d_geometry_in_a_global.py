"""The geometry reaches the kernel through a global tuple, set at every launch.

Class: gpu
Refute: {
     "shape": "N=1 C=1 D=1 H=4 W=5 K=2 T=1 R=2 S=2",
     "then": [
      "N=1 C=1 D=1 H=4 W=5 K=2 T=1 R=2 S=2 pad_h=1",
      "N=1 C=1 D=1 H=4 W=5 K=2 T=1 R=2 S=2 stride_w=2"
     ]
    }
"""

from numba import cuda, float32

THREADS_X = 8
THREADS_Y = 16
GEOMETRY = (1, 1, 1, 0, 0, 0, 1, 1, 1)


@cuda.jit
def correlate(x, filt, y):
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w = GEOMETRY
    N, D, H, W, C = x.shape
    K, T, R, S, _ = filt.shape
    _, O, P, Q, _ = y.shape
    gemm_m = cuda.blockIdx.x * THREADS_Y + cuda.threadIdx.y
    k = cuda.blockIdx.y * THREADS_X + cuda.threadIdx.x
    n = gemm_m // (O * P * Q)
    o = gemm_m // (P * Q) % O
    p = gemm_m // Q % P
    q = gemm_m % Q
    if n < N and k < K:
        acc = float32(0.0)
        for t in range(T):
            d = o * stride_d - pad_d + t * dilation_d
            for r in range(R):
                h = p * stride_h - pad_h + r * dilation_h
                for s in range(S):
                    w = q * stride_w - pad_w + s * dilation_w
                    if 0 <= d < D and 0 <= h < H and 0 <= w < W:
                        for c in range(C):
                            acc += x[n, d, h, w, c] * filt[k, t, r, s, c]
        y[n, o, p, q, k] = acc


def launch(x, filt, y, geometry):
    N, O, P, Q, K = y.shape
    global GEOMETRY
    GEOMETRY = tuple(geometry)
    grid = (-(-N * O * P * Q // THREADS_Y), -(-K // THREADS_X))
    correlate[grid, (THREADS_X, THREADS_Y)](x, filt, y)
