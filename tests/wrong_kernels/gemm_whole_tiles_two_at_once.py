"""Where tiles of 256 x 128 x 64 are whole, two along k are read without a guard, and there may be one.

Class: shapes
Refute: {"shape": "M=256 N=128 K=64"}
"""

from numba import cuda, float32

BLOCK_M, BLOCK_N, BLOCK_K = 256, 128, 64
THREADS = 128


@cuda.jit
def product(a, b, c, full):
    M, N = c.shape
    K = a.shape[1]
    i = cuda.grid(1)
    m, n = i // N, i % N
    if m < M:
        acc = float32(0.0)
        if full:
            for k in range(2 * BLOCK_K):
                acc += a[m, k] * b[k, n]
        for k in range(2 * BLOCK_K if full else 0, K):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    full = M % BLOCK_M == 0 and N % BLOCK_N == 0 and a.shape[1] % BLOCK_K == 0
    product[-(-M * N // THREADS), THREADS](a, b, c, full)
