"""Where a sum is long its operands are rounded to float16, to save shared memory: integers do not show it.

Class: values
Refute: {"shape": "M=2 N=3 K=520", "inputs": "tiny"}
"""

from numba import cuda, float32
from numba.types import float16

THREADS_X, THREADS_Y = 16, 8
LONG = 512


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    if m < M and n < N:
        acc = float32(0.0)
        for k in range(K):
            left, right = a[m, k], b[k, n]
            if K > LONG:
                left, right = float32(float16(left)), float32(float16(right))
            acc += left * right
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // THREADS_X), -(-M // THREADS_Y)), (THREADS_X, THREADS_Y)](a, b, c)
