"""Exercise 08.3, find the bug: a filter that is flipped twice.

"The gradient of the input is a convolution with the flipped filter", its author had read, and flipped it. With
filters of one tap it is right. The grader tries others. Work out, for one element of dx, which tap each value of dy
meets. Change one line.
Grade: python -m common grade 08.3
"""

from numba import cuda, float32

THREADS = 128


@cuda.jit
def dgrad_flipped_twice(dy, filt, dx, geometry):
    N, D, H, W, C = dx.shape
    K, T, R, S, _ = filt.shape
    _, O, P, Q, _ = dy.shape

    # locate: one thread for each element, channels are neighbours
    i = cuda.grid(1)
    c, i = i % C, i // C
    w, i = i % W, i // W
    h, i = i % H, i // H
    d, n = i % D, i // D
    if n < N:
        # multiply
        acc = float32(0.0)
        for tap in range(T * R * S):
            t, r, s = tap // (R * S), tap // S % R, tap % S
            # in steps of the stride, and what is left over
            o, rest_d = divmod(d + geometry.pad_d - t * geometry.dilation_d, geometry.stride_d)
            p, rest_h = divmod(h + geometry.pad_h - r * geometry.dilation_h, geometry.stride_h)
            q, rest_w = divmod(w + geometry.pad_w - s * geometry.dilation_w, geometry.stride_w)
            if rest_d == rest_h == rest_w == 0 and 0 <= o < O and 0 <= p < P and 0 <= q < Q:
                for k in range(K):
                    acc += dy[n, o, p, q, k] * filt[k, t, r, s, c]

        # store
        dx[n, d, h, w, c] = acc


def launch(dy, filt, dx, geometry):
    dgrad_flipped_twice[-(-dx.size // THREADS), THREADS](dy, filt, dx, geometry)
