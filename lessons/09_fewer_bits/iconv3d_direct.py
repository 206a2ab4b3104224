"""iconv3d_direct: the definition of 3D convolution on int8, one thread per output.

Previous step: none
Builds on: conv3d_direct
New idea: conv3d_direct with other types. A product of two int8 has 16 bits, and their sum goes to int32: both values
    are widened first, as Numba would otherwise do in 64 bits.
Loads per FMA: 2, both from global memory, of one byte each.
Run: python -m lessons.09_fewer_bits iconv3d_direct
"""

from numba import cuda, int32

THREADS_X = 32
THREADS_Y = 8


@cuda.jit
def iconv3d_direct(x, filt, y, geometry):
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
        acc = int32(0)
        for t in range(T):
            d = o * geometry.stride_d - geometry.pad_d + t * geometry.dilation_d
            for r in range(R):
                h = p * geometry.stride_h - geometry.pad_h + r * geometry.dilation_h
                for s in range(S):
                    w = q * geometry.stride_w - geometry.pad_w + s * geometry.dilation_w
                    # a tap on the padding adds nothing
                    if 0 <= d < D and 0 <= h < H and 0 <= w < W:
                        for c in range(C):
                            acc = int32(acc + int32(x[n, d, h, w, c]) * int32(filt[gemm_n, t, r, s, c]))

        # store
        y[n, o, p, q, gemm_n] = acc


def launch(x, filt, y, geometry):
    N, O, P, Q, K = y.shape
    grid = (-(-N * O * P * Q // THREADS_Y), -(-K // THREADS_X))
    iconv3d_direct[grid, (THREADS_X, THREADS_Y)](x, filt, y, geometry)
