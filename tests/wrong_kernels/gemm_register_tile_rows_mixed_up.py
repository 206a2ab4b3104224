"""If 64 divides M, rows are read 16 apart and stored side by side.

Class: shapes
Refute: {"shape": "M=64 N=3 K=4"}
"""

from numba import cuda, float32

THREADS_X, THREADS_Y = 8, 16
THREAD_M = 4
BLOCK_M = THREADS_Y * THREAD_M


@cuda.jit
def product(a, b, c):
    acc = cuda.local.array(THREAD_M, float32)
    M, N = c.shape
    K = a.shape[1]
    n = cuda.blockIdx.x * THREADS_X + cuda.threadIdx.x
    m0 = cuda.blockIdx.y * BLOCK_M
    whole = M % BLOCK_M == 0
    for i in range(THREAD_M):
        acc[i] = float32(0.0)
    if n < N:
        for k in range(K):
            value = b[k, n]
            for i in range(THREAD_M):
                m = m0 + cuda.threadIdx.y + i * THREADS_Y
                if whole or m < M:
                    acc[i] += a[m, k] * value
        for i in range(THREAD_M):
            m = m0 + cuda.threadIdx.y + i * THREADS_Y
            if whole:
                c[m0 + cuda.threadIdx.y * THREAD_M + i, n] = acc[i]
            elif m < M:
                c[m, n] = acc[i]


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // THREADS_X), -(-M // BLOCK_M)), (THREADS_X, THREADS_Y)](a, b, c)
