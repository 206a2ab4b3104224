r"""Half a warp waits for the other half, which waits elsewhere.

Fault: warp-sync
Shown by: tracer
Says: syncwarp names threads in its mask that do not come to it
"""

from numba import cuda, float32


@cuda.jit
def product(a, b, c):
    n, m = cuda.grid(2)
    if m < c.shape[0] and n < c.shape[1]:
        acc = float32(0.0)
        for k in range(a.shape[1]):
            acc += a[m, k] * b[k, n]
        if cuda.laneid < 16:
            cuda.syncwarp()  # <- here
        else:
            acc = cuda.shfl_sync(0xFFFFFFFF, acc, 0)
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // 16), -(-M // 8)), (16, 8)](a, b, c)
