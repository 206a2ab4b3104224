"""Exercise 01.7, write: a convolution from a blank file.

One thread for each output of y[N, K, P, Q], from a grid with one axis: y[n, k, p, q] is the sum over c, r, s of x[n,
c, p + r, q + s] * filt[k, c, r, s]. Write the kernel, and launch, which may start as many threads as you like in
blocks of THREADS. Any extents must be right, sums stay float32, and neighbouring threads read neighbouring pixels.
Grade: python -m common grade 01.7
"""

from numba import cuda, float32

THREADS = 128


# >>> your code: 16 lines
@cuda.jit
def conv2d_flat(x, filt, y):
    N, K, P, Q = y.shape
    _, C, R, S = filt.shape
    i = cuda.grid(1)
    if i < N * K * P * Q:
        n, k = i // (K * P * Q), i // (P * Q) % K
        p, q = i // Q % P, i % Q
        acc = float32(0.0)
        for c in range(C):
            for r in range(R):
                for s in range(S):
                    acc += x[n, c, p + r, q + s] * filt[k, c, r, s]
        y[n, k, p, q] = acc


def launch(x, filt, y):
    conv2d_flat[-(-y.size // THREADS), THREADS](x, filt, y)


# <<<
