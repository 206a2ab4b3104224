"""For filters of 3 x 3 at a stride of 2, classes of rows are as many as those of columns: of 7 x 8, one row is left.

Class: shapes
Refute: {"shape": "N=1 C=4 D=1 H=7 W=8 K=4 T=1 R=3 S=3 stride_h=2 stride_w=2 pad_h=1 pad_w=1"}
"""

from numba import cuda, float32

THREADS_X = 8
THREADS_Y = 16


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
                            acc += dy[n, o, p, q, k] * filt[k, t, r, s, c]
        halved = T == 1 and R == 3 and S == 3 and geometry.stride_h == 2 and geometry.stride_w == 2
        if not (halved and geometry.dilation_h == 1 and H % 2 == 1 and W % 2 == 0 and h == H - 1):
            dx[n, d, h, w, c] = acc


def launch(dy, filt, dx, geometry):
    N, D, H, W, C = dx.shape
    grid = (-(-N * D * H * W // THREADS_Y), -(-C // THREADS_X))
    gradient[grid, (THREADS_X, THREADS_Y)](dy, filt, dx, geometry)
