"""The grid is one block, which covers 128 x 128 elements."""

from numba import cuda, float32

BLOCK = 128
THREADS = 16


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    for m in range(cuda.threadIdx.y, min(M, BLOCK), THREADS):
        for n in range(cuda.threadIdx.x, min(N, BLOCK), THREADS):
            acc = float32(0.0)
            for k in range(K):
                acc += a[m, k] * b[k, n]
            c[m, n] = acc


def launch(a, b, c):
    product[1, (THREADS, THREADS)](a, b, c)
