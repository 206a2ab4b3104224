"""Each output scatters its share into dx by atomics, and nobody has set dx to zero."""

from numba import cuda, float32

THREADS_X = 8
THREADS_Y = 16


@cuda.jit
def scatter(dy, filt, dx, geometry):
    N, D, H, W, C = dx.shape
    K, T, R, S, _ = filt.shape
    _, O, P, Q, _ = dy.shape
    gemm_m = cuda.blockIdx.x * THREADS_Y + cuda.threadIdx.y
    c = cuda.blockIdx.y * THREADS_X + cuda.threadIdx.x
    n = gemm_m // (O * P * Q)
    o = gemm_m // (P * Q) % O
    p = gemm_m // Q % P
    q = gemm_m % Q
    if n < N and c < C:
        for t in range(T):
            d = o * geometry.stride_d - geometry.pad_d + t * geometry.dilation_d
            for r in range(R):
                h = p * geometry.stride_h - geometry.pad_h + r * geometry.dilation_h
                for s in range(S):
                    w = q * geometry.stride_w - geometry.pad_w + s * geometry.dilation_w
                    if 0 <= d < D and 0 <= h < H and 0 <= w < W:
                        acc = float32(0.0)
                        for k in range(K):
                            acc += dy[n, o, p, q, k] * filt[k, t, r, s, c]
                        cuda.atomic.add(dx, (n, d, h, w, c), acc)


def launch(dy, filt, dx, geometry):
    N, O, P, Q, _ = dy.shape
    grid = (-(-N * O * P * Q // THREADS_Y), -(-dx.shape[4] // THREADS_X))
    scatter[grid, (THREADS_X, THREADS_Y)](dy, filt, dx, geometry)
