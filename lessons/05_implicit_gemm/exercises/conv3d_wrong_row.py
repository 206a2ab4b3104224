"""Exercise 05.2, find the bug: right for square images.

An implicit GEMM with one output per thread. Where P and Q are equal, as in most layers, it is right, and so it went
unnoticed. The grader tries others, and says which outputs were never written: which pixel did their threads take
instead? Change one line.
Grade: python -m common grade 05.2
"""

from numba import cuda, float32

THREADS_X, THREADS_Y = 32, 4


@cuda.jit
def conv3d_wrong_row(x, filt, y, geometry):
    N, D, H, W, C = x.shape
    K, T, R, S, _ = filt.shape
    _, O, P, Q, _ = y.shape

    # locate: x is the filter, so neighbours in a warp are neighbours in y
    k = cuda.blockIdx.y * THREADS_X + cuda.threadIdx.x
    gemm_m = cuda.blockIdx.x * THREADS_Y + cuda.threadIdx.y
    q, rest = gemm_m % Q, gemm_m // Q
    p, rest = rest % P, rest // Q
    o, n = rest % O, rest // O
    if n < N and k < K:
        # multiply
        acc = float32(0.0)
        for t in range(T):
            d = o * geometry.stride_d - geometry.pad_d + t * geometry.dilation_d
            for r in range(R):
                h = p * geometry.stride_h - geometry.pad_h + r * geometry.dilation_h
                for s in range(S):
                    w = q * geometry.stride_w - geometry.pad_w + s * geometry.dilation_w
                    if 0 <= d < D and 0 <= h < H and 0 <= w < W:
                        for c in range(C):
                            acc += x[n, d, h, w, c] * filt[k, t, r, s, c]

        # store
        y[n, o, p, q, k] = acc


def launch(x, filt, y, geometry):
    N, O, P, Q, K = y.shape
    grid = (-(-N * O * P * Q // THREADS_Y), -(-K // THREADS_X))
    conv3d_wrong_row[grid, (THREADS_X, THREADS_Y)](x, filt, y, geometry)
