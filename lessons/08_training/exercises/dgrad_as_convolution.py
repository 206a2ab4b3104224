"""Exercise 08.2, write: an ordinary convolution, of dy.

With a stride of 1, dx is what a forward convolution makes of dy, with another filter and another padding. The
convolution is lesson 01's conv3d_direct, y[m] = sum over taps of x[m - pad + tap * dilation] * filt[tap].
Write the filter that it needs, turned[C, T, R, S, K], and the padding that makes its output as large as dx. A padding
below zero is allowed: it leaves out edges. The stride is always 1.
Grade: python -m common grade 08.2
"""

import importlib

from numba import cuda

convolution = importlib.import_module("lessons.01_naive.conv3d_direct")
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


def prepare(filt, problem):
    K, T, R, S, C = filt.shape
    turned = cuda.device_array((C, T, R, S, K), "float32")
    turn[-(-turned.size // THREADS), THREADS](filt, turned)
    return turned


def launch(dy, turned, dx, geometry):
    C, T, R, S, K = turned.shape
    # >>> your code: 3 lines
    pad_d = pad_h = pad_w = 0
    # <<<
    convolution.launch(dy, turned, dx, geometry._replace(pad_d=pad_d, pad_h=pad_h, pad_w=pad_w))
