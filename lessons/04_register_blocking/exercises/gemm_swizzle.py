"""Exercise 04.3, write: no conflict, and no float unused.

The threads of a warp lie along m here. A warp writes a_tile along a row, a_tile[ty, tx], and reads it along a column,
a_tile[tx, k]: 32 rows of 32 floats, all in one bank. Padding would cure it. Cure it without: element (row, column)
need not lie in its own column, if both sides agree where it lies. Write place(row, column), its index in the flat
array: one wavefront for each request, and not a byte more.
Grade: python -m common grade 04.3
"""

from numba import cuda, float32

TILE = 32
TILE_SIZE = TILE * TILE


@cuda.jit(device=True)
def place(row, column):
    # >>> your code: 1 line
    # where element (row, column) of a_tile lies, from 0 to TILE_SIZE - 1
    index = 0
    # <<<
    return index


@cuda.jit
def gemm_swizzle(a, b, c):
    a_tile = cuda.shared.array(TILE_SIZE, float32)
    b_tile = cuda.shared.array(TILE_SIZE, float32)
    M, N = c.shape
    K = a.shape[1]

    # locate
    m, n = cuda.grid(2)
    m0, n0 = cuda.blockIdx.x * TILE, cuda.blockIdx.y * TILE
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y

    acc = float32(0.0)
    for k0 in range(0, K, TILE):
        # stage
        a_tile[place(ty, tx)] = a[m0 + ty, k0 + tx] if m0 + ty < M and k0 + tx < K else float32(0.0)
        b_tile[ty * TILE + tx] = b[k0 + ty, n0 + tx] if k0 + ty < K and n0 + tx < N else float32(0.0)
        cuda.syncthreads()

        # multiply
        for k in range(TILE):
            acc += a_tile[place(tx, k)] * b_tile[k * TILE + ty]
        cuda.syncthreads()

    # store
    if m < M and n < N:
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    gemm_swizzle[(-(-M // TILE), -(-N // TILE)), (TILE, TILE)](a, b, c)
