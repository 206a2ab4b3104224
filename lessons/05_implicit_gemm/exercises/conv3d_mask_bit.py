"""Exercise 05.5, write: a bit for each t, r and s.

Which taps lie in the image depends on the pixel alone. So a thread finds out once, and keeps the answer in a number
of 32 bits, one for each t, r and s: bit t is 1 if the pixels of all taps with this t lie outside along d, bit T + r
and bit T + R + s say the same along h and w. Write the bits, and the test in the loop. What lies outside must not be
read, and counts as zero.
Grade: python -m common grade 05.5
"""

from numba import cuda, float32, uint32

THREADS_X, THREADS_Y = 32, 4


@cuda.jit
def conv3d_mask_bit(x, filt, y, geometry):
    N, D, H, W, C = x.shape
    K, T, R, S, _ = filt.shape
    _, O, P, Q, _ = y.shape

    # locate: (d0, h0, w0) is the pixel of tap (0, 0, 0), in the image or not
    k = cuda.blockIdx.y * THREADS_X + cuda.threadIdx.x
    gemm_m = cuda.blockIdx.x * THREADS_Y + cuda.threadIdx.y
    n, o = gemm_m // (O * P * Q), gemm_m // (P * Q) % O
    p, q = gemm_m // Q % P, gemm_m % Q
    d0 = o * geometry.stride_d - geometry.pad_d
    h0 = p * geometry.stride_h - geometry.pad_h
    w0 = q * geometry.stride_w - geometry.pad_w
    if n < N and k < K:
        mask = uint32(0)
        # >>> your code: 9 lines
        # set the bits of t, r and s that lie outside
        # <<<

        # multiply
        acc = float32(0.0)
        for c in range(C):
            for t in range(T):
                for r in range(R):
                    for s in range(S):
                        # >>> your code: 2 lines
                        # is this tap inside along all three?
                        inside = 0
                        # <<<
                        if inside:
                            d, h = d0 + t * geometry.dilation_d, h0 + r * geometry.dilation_h
                            acc += x[n, d, h, w0 + s * geometry.dilation_w, c] * filt[k, t, r, s, c]

        # store
        y[n, o, p, q, k] = acc


def launch(x, filt, y, geometry):
    N, O, P, Q, K = y.shape
    grid = (-(-N * O * P * Q // THREADS_Y), -(-K // THREADS_X))
    conv3d_mask_bit[grid, (THREADS_X, THREADS_Y)](x, filt, y, geometry)
