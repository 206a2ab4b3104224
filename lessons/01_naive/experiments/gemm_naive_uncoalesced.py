"""gemm_naive_uncoalesced: gemm_naive with the two thread axes swapped.

Variant of: gemm_naive
New idea: x, the axis along which a warp lies, is the row; the 32 threads of a warp now read 32 rows of A and
    write 32 rows of C, each in a memory sector of its own.
Loads per FMA: 2, both from global memory, as before; each request touches up to 32 sectors instead of 4.
Run: python -m lessons.01_naive gemm_naive_uncoalesced
"""

from numba import cuda, float32

THREADS_X = 32
THREADS_Y = 8


@cuda.jit
def gemm_naive_uncoalesced(a, b, c):
    M, N = c.shape
    K = a.shape[1]

    # locate: x is the row, so neighbours in a warp are a whole row apart in memory
    m, n = cuda.grid(2)
    if m < M and n < N:
        # multiply
        acc = float32(0.0)
        for k in range(K):
            acc += a[m, k] * b[k, n]

        # store
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-M // THREADS_X), -(-N // THREADS_Y))  # at most 65535 in y: 524,280 columns
    gemm_naive_uncoalesced[grid, (THREADS_X, THREADS_Y)](a, b, c)
