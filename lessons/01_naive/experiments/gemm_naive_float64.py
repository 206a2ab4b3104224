"""gemm_naive_float64: gemm_naive with its accumulator written as 0.0.

Variant of: gemm_naive
New idea: a Python float is a float64, so the literal makes Numba type the sum as float64; every float32 product
    is converted and then added in double precision.
Loads per FMA: 2, both from global memory, as before; multiply, convert and add replace the multiply-add.
Run: python -m lessons.01_naive gemm_naive_float64
"""

from numba import cuda

from lessons.toolkit.grid import row_slices

THREADS_X = 32
THREADS_Y = 8


@cuda.jit
def gemm_naive_float64(a, b, c):
    M, N = c.shape
    K = a.shape[1]

    # locate: x is the column, so neighbours in a warp are neighbours in memory
    n, m = cuda.grid(2)
    if m < M and n < N:
        # multiply
        acc = 0.0
        for k in range(K):
            acc += a[m, k] * b[k, n]

        # store
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    for rows, grid in row_slices(M, N, THREADS_Y, THREADS_X):
        gemm_naive_float64[grid, (THREADS_X, THREADS_Y)](a[rows], b, c[rows])
