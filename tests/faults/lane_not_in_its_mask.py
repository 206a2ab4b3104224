"""A lane takes part in what its mask leaves out.

Fault: warp-sync
Shown by: tracer
Says: shfl_sync is called by a thread that its mask does not name
"""

from numba import cuda, float32


@cuda.jit
def product(a, b, c):
    n, m = cuda.grid(2)
    if m < c.shape[0] and n < c.shape[1]:
        acc = float32(0.0)
        for k in range(a.shape[1]):
            acc += a[m, k] * b[k, n]
        c[m, n] = cuda.shfl_sync(1, acc, 0)  # <- here


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // 16), -(-M // 8)), (16, 8)](a, b, c)
