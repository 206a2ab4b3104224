"""A row of A is kept in shared memory, which holds its first 128 terms.

Class: shapes
Refute: {"shape": "M=3 N=4 K=129"}
"""

from numba import cuda, float32

THREADS = 32
LONGEST = 128


@cuda.jit
def product(a, b, c):
    row = cuda.shared.array(LONGEST, float32)
    N = c.shape[1]
    K = min(a.shape[1], LONGEST)
    m = cuda.blockIdx.y
    n = cuda.grid(1)
    for k in range(cuda.threadIdx.x, K, THREADS):
        row[k] = a[m, k]
    cuda.syncthreads()
    if n < N:
        acc = float32(0.0)
        for k in range(K):
            acc += row[k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // THREADS), M), THREADS](a, b, c)
