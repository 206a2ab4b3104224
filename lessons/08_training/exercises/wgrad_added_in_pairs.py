"""Exercise 08.7, find the bug: partial sums, added in pairs.

The sum over images and pixels is cut into parts of LENGTH products, the last one shorter. So a longer sum has more
parts. The second kernel adds them in pairs, in their own places: of eight, 0 + 4, 1 + 5, 2 + 6, 3 + 7, then 0 + 2 and
1 + 3, then 0 + 1. That order is fixed, too, and a value is rounded three times, not up to seven. Four parts come out
right, and eight. Write down what becomes of five, six and seven. Change 2 lines.
Grade: python -m common grade 08.7
"""

from numba import cuda, float32

THREADS = 128
LENGTH = 8


@cuda.jit
def wgrad_added_in_pairs(x, dy, partials, geometry):
    N, D, H, W, C = x.shape
    _, K, T, R, S, _ = partials.shape
    _, O, P, Q, _ = dy.shape

    # locate: x is the element of dfilt, y the part of its sum
    i, part = cuda.blockIdx.x * THREADS + cuda.threadIdx.x, cuda.blockIdx.y
    c, s, r = i % C, i // C % S, i // (C * S) % R
    t, k = i // (C * S * R) % T, i // (C * S * R * T)
    if k < K:
        # multiply
        acc = float32(0.0)
        for gemm_k in range(part * LENGTH, min((part + 1) * LENGTH, N * O * P * Q)):
            n, o, p, q = gemm_k // (O * P * Q), gemm_k // (P * Q) % O, gemm_k // Q % P, gemm_k % Q
            d = o * geometry.stride_d - geometry.pad_d + t * geometry.dilation_d
            h = p * geometry.stride_h - geometry.pad_h + r * geometry.dilation_h
            w = q * geometry.stride_w - geometry.pad_w + s * geometry.dilation_w
            if 0 <= d < D and 0 <= h < H and 0 <= w < W:
                acc += x[n, d, h, w, c] * dy[n, o, p, q, k]

        # store
        partials[part, k, t, r, s, c] = acc


@cuda.jit
def add_in_pairs(partials, dfilt, parts):
    i = cuda.grid(1)
    if i < dfilt.size:
        count = parts
        while count > 1:
            half = count // 2
            for part in range(half):
                partials[part * dfilt.size + i] += partials[(part + half) * dfilt.size + i]
            count = half
        dfilt[i] = partials[i]


def workspace(problem):
    parts = -(-problem.reduction // LENGTH)
    return cuda.device_array((parts, *problem.output_shape), "float32")


def launch(x, dy, dfilt, geometry, partials):
    blocks, parts = -(-dfilt.size // THREADS), partials.shape[0]
    wgrad_added_in_pairs[(blocks, parts), THREADS](x, dy, partials, geometry)
    add_in_pairs[blocks, THREADS](partials.reshape(partials.size), dfilt.reshape(dfilt.size), parts)
