"""A thread has one channel of one pixel of the gradient of the input."""

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
        dx[n, d, h, w, c] = acc


def launch(dy, filt, dx, geometry):
    N, D, H, W, C = dx.shape
    grid = (-(-N * D * H * W // THREADS_Y), -(-C // THREADS_X))
    gradient[grid, (THREADS_X, THREADS_Y)](dy, filt, dx, geometry)
