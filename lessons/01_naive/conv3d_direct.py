"""conv3d_direct: the definition of 3D convolution, seven loops, one thread per output.

Previous step: none
New idea: channels-last layout, x[N, D, H, W, C] with filt[K, T, R, S, C]; the four output axes n, o, p, q
    become one row index gemm_m, the filter k is the column gemm_n, and the four inner loops are the sum.
Loads per FMA: 2, both from global memory (one pixel channel of x, one tap of filt).
Run: python -m lessons.01_naive conv3d_direct
"""

from numba import cuda, float32

THREADS_X = 32
THREADS_Y = 8


@cuda.jit
def conv3d_direct(x, filt, y, geometry):
    N, D, H, W, C = x.shape
    K, T, R, S, _ = filt.shape
    _, O, P, Q, _ = y.shape

    # locate: rows ride on blockIdx.x, which may count 2**31 - 1 blocks; y only 65535
    gemm_m = cuda.blockIdx.x * THREADS_Y + cuda.threadIdx.y
    gemm_n = cuda.blockIdx.y * THREADS_X + cuda.threadIdx.x
    n = gemm_m // (O * P * Q)
    o = gemm_m // (P * Q) % O
    p = gemm_m // Q % P
    q = gemm_m % Q
    if n < N and gemm_n < K:
        # stage: nothing, every operand comes straight from global memory

        # multiply
        acc = float32(0.0)
        for t in range(T):
            d = o * geometry.stride_d - geometry.pad_d + t * geometry.dilation_d
            for r in range(R):
                h = p * geometry.stride_h - geometry.pad_h + r * geometry.dilation_h
                for s in range(S):
                    w = q * geometry.stride_w - geometry.pad_w + s * geometry.dilation_w
                    # a tap on the padding adds nothing
                    if 0 <= d < D and 0 <= h < H and 0 <= w < W:
                        for c in range(C):
                            acc += x[n, d, h, w, c] * filt[gemm_n, t, r, s, c]

        # store
        y[n, o, p, q, gemm_n] = acc


def launch(x, filt, y, geometry):
    N, O, P, Q, K = y.shape
    grid = (-(-N * O * P * Q // THREADS_Y), -(-K // THREADS_X))
    conv3d_direct[grid, (THREADS_X, THREADS_Y)](x, filt, y, geometry)
