"""dgrad_direct: the gradient of the input by its definition, one thread per element of dx.

Previous step: none
Builds on: conv3d_direct
New idea: the chain rule read from the input's side. A pixel of x was read at tap (t, r, s) by the output whose window
    puts that tap on it, so its gradient gathers dy there, times the filter. With a stride, most taps have no such
    output: the division by the stride leaves a rest.
Loads per FMA: 2, both from global memory (one filter's value of dy, one of filt).
Run: python -m lessons.08_training dgrad_direct
"""

from numba import cuda, float32

THREADS_X = 32
THREADS_Y = 8


@cuda.jit
def dgrad_direct(dy, filt, dx, geometry):
    N, D, H, W, C = dx.shape
    K, T, R, S, _ = filt.shape
    _, O, P, Q, _ = dy.shape

    # locate: rows ride on blockIdx.x, which may count 2**31 - 1 blocks; y only 65535
    gemm_m = cuda.blockIdx.x * THREADS_Y + cuda.threadIdx.y
    c = cuda.blockIdx.y * THREADS_X + cuda.threadIdx.x
    n = gemm_m // (D * H * W)
    d = gemm_m // (H * W) % D
    h = gemm_m // W % H
    w = gemm_m % W
    if n < N and c < C:
        # stage: nothing, every operand comes straight from global memory

        # multiply
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
                    # only a window that puts this tap here gives anything back
                    met = (
                        o * geometry.stride_d == below_d
                        and p * geometry.stride_h == below_h
                        and q * geometry.stride_w == below_w
                    )
                    if met and 0 <= o < O and 0 <= p < P and 0 <= q < Q:
                        for k in range(K):
                            acc += dy[n, o, p, q, k] * filt[k, t, r, s, c]

        # store
        dx[n, d, h, w, c] = acc


def launch(dy, filt, dx, geometry):
    N, D, H, W, C = dx.shape
    grid = (-(-N * D * H * W // THREADS_Y), -(-C // THREADS_X))
    dgrad_direct[grid, (THREADS_X, THREADS_Y)](dy, filt, dx, geometry)
