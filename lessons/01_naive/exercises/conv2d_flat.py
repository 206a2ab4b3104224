"""Exercise 01.6, write: a convolution from a blank file.

One thread for each output of y[N, K, P, Q], from a grid with one axis: y[n, k, p, q] is the sum over c, r, s of x[n,
c, p + r, q + s] * filt[k, c, r, s]. Write the kernel, and launch, which may start as many threads as you like in
blocks of THREADS. Any extents must be right, sums stay float32, and neighbouring threads read neighbouring pixels.
Grade: python -m common grade 01.6
"""

from numba import cuda, float32

THREADS = 128


# >>> your code: 16 lines
def launch(x, filt, y):
    pass


# <<<
