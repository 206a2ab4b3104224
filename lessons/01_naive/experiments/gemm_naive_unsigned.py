"""gemm_naive_unsigned: gemm_naive with unsigned indices.

Variant of: gemm_naive
New idea: Python lets a[-1] mean the last element, so for every signed index Numba adds the extent if the index is
    negative; an unsigned index cannot be, and the test and the addition disappear.
Loads per FMA: 2, both from global memory, as before; fewer integer instructions around them.
Run: python -m lessons.01_naive gemm_naive_unsigned
"""

from numba import cuda, float32, uint64

from lessons.toolkit.grid import row_slices

THREADS_X = 32
THREADS_Y = 8


@cuda.jit
def gemm_naive_unsigned(a, b, c):
    # extents too: Numba compares a signed with an unsigned integer as float64
    M, N = uint64(c.shape[0]), uint64(c.shape[1])
    K = uint64(a.shape[1])

    # locate: x is the column, so neighbours in a warp are neighbours in memory
    n, m = cuda.grid(2)
    n, m = uint64(n), uint64(m)
    if m < M and n < N:
        # multiply
        acc = float32(0.0)
        for k in range(K):
            acc += a[m, k] * b[k, n]

        # store
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    for rows, grid in row_slices(M, N, THREADS_Y, THREADS_X):
        gemm_naive_unsigned[grid, (THREADS_X, THREADS_Y)](a[rows], b, c[rows])
