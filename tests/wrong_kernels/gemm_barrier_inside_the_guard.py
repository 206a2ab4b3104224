"""The loop with its barriers stands inside the guard, so threads beyond C never come to them.

Class: sound
Refute: {"shape": "M=4 N=5 K=20", "unsound": "barrier"}
"""

from numba import cuda, float32

TILE = 16


@cuda.jit
def product(a, b, c):
    a_tile = cuda.shared.array((TILE, TILE), float32)
    b_tile = cuda.shared.array((TILE, TILE), float32)
    M, N = c.shape
    K = a.shape[1]
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    n, m = cuda.grid(2)
    acc = float32(0.0)
    if m < M and n < N:
        for k0 in range(0, K, TILE):
            for j in range(tx, TILE, min(TILE, N - cuda.blockIdx.x * TILE)):
                a_tile[ty, j] = a[m, k0 + j] if k0 + j < K else float32(0.0)
            for j in range(ty, TILE, min(TILE, M - cuda.blockIdx.y * TILE)):
                b_tile[j, tx] = b[k0 + j, n] if k0 + j < K else float32(0.0)
            cuda.syncthreads()
            for k in range(TILE):
                acc += a_tile[ty, k] * b_tile[k, tx]
            cuda.syncthreads()
    if m < M and n < N:
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, b, c)
