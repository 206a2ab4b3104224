"""gemm_naive: one thread computes one element of C.

Previous step: none
New idea: a grid of threads, one per element of C[M, N] = A[M, K] @ B[K, N]; neighbouring threads take
    neighbouring columns, so a warp reads a row of B in one piece.
Loads per FMA: 2, both from global memory (one element of A, one of B).
Run: python -m lessons.01_naive gemm_naive
"""

from numba import cuda, float32

from lessons.toolkit.grid import row_slices

THREADS_X = 32
THREADS_Y = 8


@cuda.jit
def gemm_naive(a, b, c):
    M, N = c.shape
    K = a.shape[1]

    # locate: x is the column, so neighbours in a warp are neighbours in memory
    n, m = cuda.grid(2)
    if m < M and n < N:
        # stage: nothing, every operand comes straight from global memory

        # multiply
        acc = float32(0.0)
        for k in range(K):
            acc += a[m, k] * b[k, n]

        # store
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    for rows, grid in row_slices(M, N, THREADS_Y, THREADS_X):
        gemm_naive[grid, (THREADS_X, THREADS_Y)](a[rows], b, c[rows])
