"""gemm_coarsened: each thread computes WPT elements of one column of C.

Previous step: gemm_shared_tile
New idea: a thread that owns WPT rows of one column reads its element of B once and uses it WPT times from a register.
    The tiles stay as they are; a block needs only 1 / WPT of the threads.
Loads per FMA: (WPT + 1) / WPT = 1.125 from shared memory instead of 2; from global 2 / TILE = 0.0625 as before.
Run: python -m lessons.03_coarsening gemm_coarsened
"""

from numba import cuda, float32, uint32

from lessons.toolkit.grid import row_slices

TILE = 32  # a block computes TILE x TILE elements of C
WPT = 8  # work per thread: rows of C that one thread computes
TUNABLES = {"TILE": (16, 32), "WPT": (1, 2, 4, 8, 16)}

if TILE % WPT:
    raise ValueError(f"{TILE=} must be a multiple of {WPT=}")
THREADS_Y = TILE // WPT
TILE_SHAPE = (TILE, TILE)


@cuda.jit
def gemm_coarsened(a, b, c):
    a_tile = cuda.shared.array(TILE_SHAPE, float32)
    b_tile = cuda.shared.array(TILE_SHAPE, float32)
    acc = cuda.local.array(WPT, float32)
    M, N = c.shape
    K = a.shape[1]

    # locate: this thread's rows are m0 + ty, m0 + ty + THREADS_Y, ...
    tx, ty = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)  # unsigned: no wrap-around, see lesson 01
    m0 = cuda.blockIdx.y * TILE
    n = cuda.blockIdx.x * TILE + tx

    for w in range(WPT):
        acc[w] = float32(0.0)
    for k0 in range(0, K, TILE):
        # stage: WPT rows of either tile; what lies outside A or B counts as zero
        for w in range(WPT):
            row = w * THREADS_Y + ty
            m, k = m0 + row, k0 + row
            a_tile[row, tx] = a[m, k0 + tx] if m < M and k0 + tx < K else float32(0.0)
            b_tile[row, tx] = b[k, n] if k < K and n < N else float32(0.0)
        cuda.syncthreads()

        # multiply
        for k in range(uint32(TILE)):
            b_value = b_tile[k, tx]
            for w in range(WPT):
                acc[w] += a_tile[w * THREADS_Y + ty, k] * b_value
        cuda.syncthreads()

    # store
    for w in range(WPT):
        m = m0 + w * THREADS_Y + ty
        if m < M and n < N:
            c[m, n] = acc[w]


def launch(a, b, c):
    M, N = c.shape
    for rows, grid in row_slices(M, N, TILE, TILE):
        gemm_coarsened[grid, (TILE, THREADS_Y)](a[rows], b, c[rows])
