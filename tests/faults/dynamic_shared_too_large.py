"""More dynamic shared memory than a block has.

Fault: launch-limits
Shown by: both
Says: asks for 262144 bytes of dynamic shared memory: a block has at most
"""

from numba import cuda, float32


@cuda.jit
def product(a, b, c):
    n, m = cuda.grid(2)
    if m < c.shape[0] and n < c.shape[1]:
        acc = float32(0.0)
        for k in range(a.shape[1]):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // 16), -(-M // 8)), (16, 8), 0, 262144](a, b, c)  # <- here
