"""wgrad_direct: the gradient of the filter by its definition, one thread per element of dfilt.

Previous step: none
Builds on: conv3d_direct
New idea: the chain rule read from the filter's side. A tap was multiplied with one pixel for each output, so its
    gradient sums dy times that pixel over all images and outputs: few threads, each with a long sum.
Loads per FMA: 2, both from global memory (one pixel channel of x, one value of dy).
Run: python -m lessons.08_training wgrad_direct
"""

from numba import cuda, float32

THREADS_X = 32
THREADS_Y = 8


@cuda.jit
def wgrad_direct(x, dy, dfilt, geometry):
    N, D, H, W, C = x.shape
    K, T, R, S, _ = dfilt.shape
    _, O, P, Q, _ = dy.shape

    # locate: columns ride on blockIdx.x, which may count 2**31 - 1 blocks; y only 65535
    gemm_n = cuda.blockIdx.x * THREADS_X + cuda.threadIdx.x
    k = cuda.blockIdx.y * THREADS_Y + cuda.threadIdx.y
    t = gemm_n // (R * S * C)
    r = gemm_n // (S * C) % R
    s = gemm_n // C % S
    c = gemm_n % C
    if t < T and k < K:
        # stage: nothing, every operand comes straight from global memory

        # multiply
        acc = float32(0.0)
        for n in range(N):
            for o in range(O):
                d = o * geometry.stride_d - geometry.pad_d + t * geometry.dilation_d
                for p in range(P):
                    h = p * geometry.stride_h - geometry.pad_h + r * geometry.dilation_h
                    # a tap on the padding was multiplied with nothing
                    if 0 <= d < D and 0 <= h < H:
                        for q in range(Q):
                            w = q * geometry.stride_w - geometry.pad_w + s * geometry.dilation_w
                            if 0 <= w < W:
                                acc += x[n, d, h, w, c] * dy[n, o, p, q, k]

        # store
        dfilt[k, t, r, s, c] = acc


def launch(x, dy, dfilt, geometry):
    K, T, R, S, C = dfilt.shape
    grid = (-(-T * R * S * C // THREADS_X), -(-K // THREADS_Y))
    wgrad_direct[grid, (THREADS_X, THREADS_Y)](x, dy, dfilt, geometry)
