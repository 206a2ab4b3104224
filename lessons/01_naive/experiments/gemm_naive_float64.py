"""gemm_naive_float64: gemm_naive with its accumulator written as 0.0.

Variant of: gemm_naive
New idea: a Python float is a float64, so the literal makes Numba type the sum as float64; every float32 product
    is converted and then added in double precision.
Loads per FMA: 2, both from global memory, as before; multiply, convert and add replace the multiply-add.
Run: python -m lessons.01_naive gemm_naive_float64
"""

from numba import cuda

THREADS_X = 32
THREADS_Y = 8
MAX_ROWS = 65535 * THREADS_Y  # a grid holds at most 65535 blocks in y


@cuda.jit
def gemm_naive_float64(a, b, c):
    M, N = c.shape
    K = a.shape[1]

    # locate: x is the column, so neighbours in a warp are neighbours in memory
    n, m = cuda.grid(2)
    if m < M and n < N:
        # stage: nothing, every operand comes straight from global memory

        # multiply
        acc = 0.0
        for k in range(K):
            acc += a[m, k] * b[k, n]

        # store
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    for m0 in range(0, M, MAX_ROWS):
        rows = slice(m0, min(m0 + MAX_ROWS, M))
        grid = (-(-N // THREADS_X), -(-(rows.stop - m0) // THREADS_Y))
        gemm_naive_float64[grid, (THREADS_X, THREADS_Y)](a[rows], b, c[rows])
