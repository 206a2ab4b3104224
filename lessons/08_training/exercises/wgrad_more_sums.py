"""Exercise 08.12, tune: at most 0.6 reads of global memory for each multiply-add.

A thread computes SUMS elements of dfilt, of one tap and channel, for as many filters. For each pixel it reads one
value of x and SUMS of dy. However large SUMS is, that is more than one read for each multiply-add. Make it at most
0.6, without a stack: sums must be registers. Any extents must be right.
Grade: python -m common grade 08.12
"""

from numba import cuda, float32

THREADS = 128
SUMS = 4


@cuda.jit
def wgrad_more_sums(x, dy, dfilt, geometry):
    N, D, H, W, C = x.shape
    K, T, R, S, _ = dfilt.shape
    _, O, P, Q, _ = dy.shape

    # locate: channels are neighbours, then taps
    i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    k0 = cuda.blockIdx.y * SUMS
    c, s, r, t = i % C, i // C % S, i // (C * S) % R, i // (C * S * R)
    if t < T:
        # multiply; sums beyond the last filter are those of the last once more, and not stored
        acc = cuda.local.array(SUMS, float32)
        for j in range(SUMS):
            acc[j] = float32(0.0)
        for gemm_k in range(N * O * P * Q):
            n, o, p, q = gemm_k // (O * P * Q), gemm_k // (P * Q) % O, gemm_k // Q % P, gemm_k % Q
            d = o * geometry.stride_d - geometry.pad_d + t * geometry.dilation_d
            h = p * geometry.stride_h - geometry.pad_h + r * geometry.dilation_h
            w = q * geometry.stride_w - geometry.pad_w + s * geometry.dilation_w
            if 0 <= d < D and 0 <= h < H and 0 <= w < W:
                value = x[n, d, h, w, c]
                for j in range(SUMS):
                    acc[j] += value * dy[n, o, p, q, min(k0 + j, K - 1)]

        # store
        for j in range(SUMS):
            if k0 + j < K:
                dfilt[k0 + j, t, r, s, c] = acc[j]


def launch(x, dy, dfilt, geometry):
    K, T, R, S, C = dfilt.shape
    grid = (-(-T * R * S * C // THREADS), -(-K // SUMS))
    wgrad_more_sums[grid, THREADS](x, dy, dfilt, geometry)
