"""If 64 divides N a thread computes 4 columns, and the fourth is read 3 columns on in place of 48.

Class: shapes
Refute: {"shape": "M=3 N=64 K=5"}
"""

from numba import cuda, float32

THREADS = 16


@cuda.jit
def narrow(a, b, c):
    n, m = cuda.grid(2)
    if m < c.shape[0] and n < c.shape[1]:
        acc = float32(0.0)
        for k in range(a.shape[1]):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


@cuda.jit
def wide(a, b, c):
    m = cuda.blockIdx.y * THREADS + cuda.threadIdx.y
    n = cuda.blockIdx.x * 4 * THREADS + cuda.threadIdx.x
    if m < c.shape[0]:
        acc0, acc1, acc2, acc3 = float32(0.0), float32(0.0), float32(0.0), float32(0.0)
        for k in range(a.shape[1]):
            value = a[m, k]
            acc0 += value * b[k, n]
            acc1 += value * b[k, n + THREADS]
            acc2 += value * b[k, n + 2 * THREADS]
            acc3 += value * b[k, n + 3]
        c[m, n] = acc0
        c[m, n + THREADS] = acc1
        c[m, n + 2 * THREADS] = acc2
        c[m, n + 3 * THREADS] = acc3


def launch(a, b, c):
    M, N = c.shape
    rows = -(-M // THREADS)
    if N % (4 * THREADS) == 0:
        wide[(N // (4 * THREADS), rows), (THREADS, THREADS)](a, b, c)
    else:
        narrow[(-(-N // THREADS), rows), (THREADS, THREADS)](a, b, c)
