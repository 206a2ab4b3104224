"""Exercise 08.3, write: an ordinary convolution, of dy.

With a stride of 1, dx is what a forward convolution makes of dy, with another filter and another padding. The kernel
`convolve` is such a convolution: y[m] = sum over taps of x[m - pad + tap * dilation] * filt[tap], as in lesson 01.
Write the filter that it needs, turned[C, T, R, S, K], and the padding that makes its output as large as dx. A padding
below zero is allowed: it leaves out edges. The stride is always 1.
Grade: python -m common grade 08.3
"""

from numba import cuda, float32

THREADS = 128


@cuda.jit
def turn(filt, turned):
    C, T, R, S, K = turned.shape
    i = cuda.grid(1)
    if i < turned.size:
        k, s, r = i % K, i // K % S, i // (K * S) % R
        t, c = i // (K * S * R) % T, i // (K * S * R * T)
        # >>> your code: 1 line
        turned[c, t, r, s, k] = 0
        # <<<


@cuda.jit
def convolve(x, filt, y, pads, dilations):
    N, D, H, W, C = x.shape
    _, O, P, Q, K = y.shape
    _, T, R, S, _ = filt.shape
    k, i = cuda.grid(1) % K, cuda.grid(1) // K
    q, p, o, n = i % Q, i // Q % P, i // (Q * P) % O, i // (Q * P * O)
    if n < N:
        acc = float32(0.0)
        for tap in range(T * R * S):
            t, r, s = tap // (R * S), tap // S % R, tap % S
            d = o - pads[0] + t * dilations[0]
            h = p - pads[1] + r * dilations[1]
            w = q - pads[2] + s * dilations[2]
            if 0 <= d < D and 0 <= h < H and 0 <= w < W:
                for c in range(C):
                    acc += x[n, d, h, w, c] * filt[k, t, r, s, c]
        y[n, o, p, q, k] = acc


def prepare(filt, problem):
    K, T, R, S, C = filt.shape
    turned = cuda.device_array((C, T, R, S, K), "float32")
    turn[-(-turned.size // THREADS), THREADS](filt, turned)
    return turned


def launch(dy, turned, dx, geometry):
    C, T, R, S, K = turned.shape
    dilations = geometry.dilation_d, geometry.dilation_h, geometry.dilation_w
    # >>> your code: 3 lines
    pad_d = pad_h = pad_w = 0
    # <<<
    convolve[-(-dx.size // THREADS), THREADS](dy, turned, dx, (pad_d, pad_h, pad_w), dilations)
