"""Exercise 03.2, find the bug: right, with sums that are no registers.

A thread computes the elements of its column in WPT neighbouring rows of the tile, from row ty * WPT on. Every name
in capitals is a constant. The result is right, but the compiled kernel has a stack: acc went to local memory. What
does the compiler not know here? Change at most 2 lines.
Grade: python -m common grade 03.2
"""

from numba import cuda, float32

TILE = 32
WPT = 16  # work per thread
THREADS_Y = TILE // WPT
TILE_SHAPE = (TILE, TILE)


@cuda.jit
def gemm_lost_registers(a, b, c):
    a_tile = cuda.shared.array(TILE_SHAPE, float32)
    b_tile = cuda.shared.array(TILE_SHAPE, float32)
    acc = cuda.local.array(WPT, float32)
    M, N = c.shape
    K = a.shape[1]

    # locate
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    m0, n = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE + tx

    for w in range(WPT):
        acc[w] = float32(0.0)
    for k0 in range(0, K, TILE):
        # stage
        for row in range(ty, TILE, THREADS_Y):
            m, k = m0 + row, k0 + row
            a_tile[row, tx] = a[m, k0 + tx] if m < M and k0 + tx < K else float32(0.0)
            b_tile[row, tx] = b[k, n] if k < K and n < N else float32(0.0)
        cuda.syncthreads()

        # multiply
        for k in range(TILE):
            b_value = b_tile[k, tx]
            for row in range(ty * WPT, (ty + 1) * WPT):
                acc[row % WPT] += a_tile[row, k] * b_value
        cuda.syncthreads()

    # store
    for w in range(WPT):
        m = m0 + ty * WPT + w
        if m < M and n < N:
            c[m, n] = acc[w]


def launch(a, b, c):
    M, N = c.shape
    gemm_lost_registers[(-(-N // TILE), -(-M // TILE)), (TILE, THREADS_Y)](a, b, c)
