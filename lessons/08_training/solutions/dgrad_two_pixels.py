"""Exercise 08.3, find the bug: a thread has two pixels.

A thread computes two elements of dx, w and w + 1, for one channel. A window that holds both is asked once: its dy is
read, and goes to w by one tap and to w + 1 by the next. So the inner loop goes over outputs q, and the taps follow.
With an even stride and an even padding all of dx is right. The grader tries others. List the outputs that read w and
those that read w + 1, for strides of 1, 2 and 3. The dilation along w is always 1. Change one line.
Grade: python -m common grade 08.3
"""

from numba import cuda, float32

THREADS = 128


@cuda.jit
def dgrad_two_pixels(dy, filt, dx, geometry):
    N, D, H, W, C = dx.shape
    K, T, R, S, _ = filt.shape
    _, O, P, Q, _ = dy.shape

    # locate: a thread has w and w + 1; channels are neighbours
    i, pairs = cuda.grid(1), (W + 1) // 2
    c, i = i % C, i // C
    w, i = i % pairs * 2, i // pairs
    h, i = i % H, i // H
    d, n = i % D, i // D
    if n < N:
        # multiply: the first output reads by the last taps, the last output by the first
        left, right = float32(0.0), float32(0.0)
        below = w + geometry.pad_w
        first = max(0, (below - S + geometry.stride_w) // geometry.stride_w)
        last = min(Q - 1, (below + 1) // geometry.stride_w)
        for t in range(T):
            o, rest_d = divmod(d + geometry.pad_d - t * geometry.dilation_d, geometry.stride_d)
            for r in range(R):
                p, rest_h = divmod(h + geometry.pad_h - r * geometry.dilation_h, geometry.stride_h)
                if rest_d == rest_h == 0 and 0 <= o < O and 0 <= p < P:
                    for q in range(first, last + 1):
                        s = below - q * geometry.stride_w  # the tap of w, if there is one; w + 1 has the next
                        for k in range(K):
                            value = dy[n, o, p, q, k]
                            if s >= 0:
                                left += value * filt[k, t, r, s, c]
                            if s + 1 < S:
                                right += value * filt[k, t, r, s + 1, c]

        # store
        dx[n, d, h, w, c] = left
        if w + 1 < W:
            dx[n, d, h, w + 1, c] = right


def launch(dy, filt, dx, geometry):
    N, D, H, W, C = dx.shape
    threads = N * D * H * ((W + 1) // 2) * C
    dgrad_two_pixels[-(-threads // THREADS), THREADS](dy, filt, dx, geometry)
