"""gemm_wide_loads: every access to memory moves four values, global and shared.

Previous step: gemm_coarsened
New idea: one 128-bit instruction instead of four 32-bit ones. So that its elements are neighbours in memory, a thread
    now owns VECTOR = 4 columns of WPT / 4 rows, and reads its rows of A four k at a time.
Loads per FMA: (1 + WPT / 4 / 4) / WPT = 0.19 shared instructions instead of 1.125, which bring 0.75 values; as many
    values from global memory as before, four per instruction.
Run: python -m lessons.03_coarsening gemm_wide_loads
"""

from numba import cuda, float32

from lessons.toolkit.grid import row_slices
from lessons.toolkit.memory import VECTOR, aligned, load4, load4_guarded, shared_array, store4, store4_guarded

TILE = 32  # a block computes TILE x TILE elements of C
WPT = 8  # work per thread: elements of C that one thread computes
TUNABLES = {"TILE": (16, 32, 64), "WPT": (4, 8, 16, 32)}

if TILE % VECTOR or WPT % VECTOR or TILE % (WPT // VECTOR):
    raise ValueError(f"{TILE=} and {WPT=} must be multiples of {VECTOR=}, and {TILE=} of WPT / VECTOR")
ROWS = WPT // VECTOR
THREADS_X, THREADS_Y = TILE // VECTOR, TILE // ROWS
TILE_SIZE = TILE * TILE


@cuda.jit
def gemm_wide_loads(a, b, c, wide):
    a_tile = shared_array(TILE_SIZE)
    b_tile = shared_array(TILE_SIZE)
    stage = cuda.local.array(VECTOR, float32)
    a_frag = cuda.local.array(WPT, float32)
    b_frag = cuda.local.array(VECTOR, float32)
    acc = cuda.local.array(WPT, float32)
    K = a.shape[1]

    # locate: this thread's rows are m0 + ty, m0 + ty + THREADS_Y, ..., its columns n to n + 3
    tx, ty = cuda.threadIdx.x * VECTOR, cuda.threadIdx.y
    m0 = cuda.blockIdx.y * TILE
    n = cuda.blockIdx.x * TILE + tx

    for w in range(WPT):
        acc[w] = float32(0.0)
    for k0 in range(0, K, TILE):
        # stage: ROWS rows of either tile; what lies outside A or B counts as zero
        for i in range(ROWS):
            row = i * THREADS_Y + ty
            load4_guarded(stage, 0, a, m0 + row, k0 + tx, wide)
            store4(a_tile, row * TILE + tx, stage, 0)
            load4_guarded(stage, 0, b, k0 + row, n, wide)
            store4(b_tile, row * TILE + tx, stage, 0)
        cuda.syncthreads()

        # multiply
        for k in range(0, TILE, VECTOR):
            for i in range(ROWS):
                load4(a_frag, i * VECTOR, a_tile, (i * THREADS_Y + ty) * TILE + k)
            for u in range(VECTOR):
                load4(b_frag, 0, b_tile, (k + u) * TILE + tx)
                for i in range(ROWS):
                    for v in range(VECTOR):
                        acc[i * VECTOR + v] += a_frag[i * VECTOR + u] * b_frag[v]
        cuda.syncthreads()

    # store
    for i in range(ROWS):
        store4_guarded(c, m0 + i * THREADS_Y + ty, n, acc, i * VECTOR, wide)


def launch(a, b, c):
    M, N = c.shape
    wide = aligned(a, b, c)
    for rows, grid in row_slices(M, N, TILE, TILE):
        gemm_wide_loads[grid, (THREADS_X, THREADS_Y)](a[rows], b, c[rows], wide)
