"""The sum is cut off where it becomes float16, not rounded.

Expect: wrong
Says: elements are wrong:
"""

from numba import cuda, float32
from numba.types import float16


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    if m < M and n < N:
        acc = float32(0.0)
        for k in range(K):
            acc += float32(a[m, k]) * float32(b[k, n])
        whole = acc * float32(1024.0)
        step = float32(1.0)
        while abs(whole) >= float32(2048.0) * step:
            step *= float32(2.0)
        c[m, n] = float16(float32(int(whole / step)) * step / float32(1024.0))


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // 16), -(-M // 8)), (16, 8)](a, b, c)
