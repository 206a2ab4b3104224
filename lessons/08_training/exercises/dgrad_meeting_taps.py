"""Exercise 08.3, write: only the taps that meet.

dgrad_direct tries every tap, and asks of each whether the division by the stride leaves a rest. Of one row of the
filter every stride-th tap leaves none. So begin at the first that meets, and go on in steps of the stride. Write
where to begin, and which output it is. The dilation is always 1.
Grade: python -m common grade 08.3
"""

from numba import cuda, float32

THREADS_X, THREADS_Y = 32, 4


@cuda.jit
def dgrad_meeting_taps(dy, filt, dx, geometry):
    N, D, H, W, C = dx.shape
    K, T, R, S, _ = filt.shape
    _, O, P, Q, _ = dy.shape

    # locate: x is the channel, so neighbours in a warp are neighbours in dx
    c = cuda.blockIdx.y * THREADS_X + cuda.threadIdx.x
    gemm_m = cuda.blockIdx.x * THREADS_Y + cuda.threadIdx.y
    n, d = gemm_m // (D * H * W), gemm_m // (H * W) % D
    h, w = gemm_m // W % H, gemm_m % W
    if n < N and c < C:
        # multiply
        acc = float32(0.0)
        # >>> your code: 3 lines
        first_t = first_r = first_s = 0
        # <<<
        for t in range(first_t, T, geometry.stride_d):
            for r in range(first_r, R, geometry.stride_h):
                for s in range(first_s, S, geometry.stride_w):
                    # >>> your code: 3 lines
                    o = p = q = 0
                    # <<<
                    if 0 <= o < O and 0 <= p < P and 0 <= q < Q:
                        for k in range(K):
                            acc += dy[n, o, p, q, k] * filt[k, t, r, s, c]

        # store
        dx[n, d, h, w, c] = acc


def launch(dy, filt, dx, geometry):
    N, D, H, W, C = dx.shape
    grid = (-(-N * D * H * W // THREADS_Y), -(-C // THREADS_X))
    dgrad_meeting_taps[grid, (THREADS_X, THREADS_Y)](dy, filt, dx, geometry)
