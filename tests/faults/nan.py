r"""The accumulators are never set to zero.

Fault: read-before-write
Shown by: tracer
Says: acc\[0\], which nothing has written, is read, .* \(line 19, thread .* of block
"""

from numba import cuda, float32

TILE = 16


@cuda.jit
def product(a, b, c):
    acc = cuda.local.array(1, float32)
    n, m = cuda.grid(2)
    if m < c.shape[0] and n < c.shape[1]:
        for k in range(a.shape[1]):
            acc[0] += a[m, k] * b[k, n]  # <- here
        c[m, n] = acc[0] / float32(0.0) * float32(0.0)


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, b, c)
