"""gemm_rectangular_tiles: larger tiles that are not square, B transposed beforehand, padded rows.

Previous step: gemm_wide_loads
New idea: a 64 x 64 block of C uses each value from global memory twice as often as a 32 x 32 one, and BLOCK_K need
    not grow with it. B is transposed once, so A and B are staged alike, along k. But now a warp reads b_tile down a
    column, and without padding its 32 rows all start in the same bank. PAD = 1 shifts each row by one bank.
Loads per FMA: 1 / BLOCK_M + 1 / BLOCK_N = 0.03 global values; (WPT / 4 + 1) / WPT = 0.38 shared instructions.
    With PAD = 0, a warp takes 32 wavefronts to read four k of b_tile (the compiler makes it one 128-bit load); with
    PAD = 1, four wavefronts (four 32-bit loads).
Run: python -m lessons.04_register_blocking gemm_rectangular_tiles
"""

from numba import cuda, float32, uint64

from lessons.toolkit.grid import row_slices
from lessons.toolkit.memory import VECTOR, aligned, load4, load4_guarded, shared_array, store4

BLOCK_M, BLOCK_N, BLOCK_K = 64, 64, 32
WPT = 8  # work per thread: rows of C that one thread computes, of one column
PAD = 1  # unused values at the end of each row of b_tile
TUNABLES = {
    "BLOCK_M": (32, 64, 128), "BLOCK_N": (32, 64), "BLOCK_K": (16, 32), "WPT": (4, 8, 16), "PAD": (0, 1, 2, 4),
}  # fmt: skip
TRANSPOSE = 32
TRANSPOSE_SHAPE = (TRANSPOSE, TRANSPOSE + 1)

THREADS_X, THREADS_Y = BLOCK_N, BLOCK_M // WPT
COLUMNS = BLOCK_K // VECTOR  # 128-bit pieces in a row of either tile
ROWS = THREADS_X * THREADS_Y // COLUMNS  # rows staged at a time
if BLOCK_M % WPT or BLOCK_K % VECTOR or BLOCK_M % ROWS or BLOCK_N % ROWS:
    raise ValueError(f"{BLOCK_M=} {BLOCK_N=} {BLOCK_K=} do not divide among threads with {WPT=}")
if THREADS_X * THREADS_Y > 1024:
    raise ValueError(f"{BLOCK_M=} {BLOCK_N=} {WPT=} take {THREADS_X * THREADS_Y} threads, a block holds 1024")
B_STRIDE = BLOCK_K + PAD
A_SIZE, B_SIZE = BLOCK_M * BLOCK_K, BLOCK_N * B_STRIDE
A_FRAG = WPT * VECTOR


@cuda.jit
def gemm_rectangular_tiles(a, b_t, c, wide):
    a_tile, b_tile = shared_array(A_SIZE), shared_array(B_SIZE)
    stage, a_frag = cuda.local.array(VECTOR, float32), cuda.local.array(A_FRAG, float32)
    acc = cuda.local.array(WPT, float32)
    M, N = c.shape
    K = a.shape[1]

    # locate: this thread's rows are m0 + ty, m0 + ty + THREADS_Y, ..., its column n0 + tx
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    m0 = cuda.blockIdx.y * BLOCK_M
    n0 = cuda.blockIdx.x * BLOCK_N
    thread = ty * THREADS_X + tx
    stage_row, stage_k = thread // COLUMNS, thread % COLUMNS * VECTOR

    for w in range(WPT):
        acc[w] = float32(0.0)
    for k0 in range(0, K, BLOCK_K):
        # stage: ROWS rows of either tile at a time; what lies outside A or B counts as zero
        for row0 in range(0, BLOCK_M, ROWS):
            row = row0 + stage_row
            load4_guarded(stage, 0, a, m0 + row, k0 + stage_k, wide)
            store4(a_tile, row * BLOCK_K + stage_k, stage, 0)
        for row0 in range(0, BLOCK_N, ROWS):
            row = row0 + stage_row
            load4_guarded(stage, 0, b_t, n0 + row, k0 + stage_k, wide)
            for v in range(VECTOR):  # padded rows do not start on 16-byte boundaries
                b_tile[uint64(row * B_STRIDE + stage_k + v)] = stage[v]
        cuda.syncthreads()

        # multiply
        for k in range(0, BLOCK_K, VECTOR):
            for w in range(WPT):
                load4(a_frag, w * VECTOR, a_tile, (w * THREADS_Y + ty) * BLOCK_K + k)
            for u in range(VECTOR):
                b_value = b_tile[uint64(tx * B_STRIDE + k + u)]
                for w in range(WPT):
                    acc[w] += a_frag[w * VECTOR + u] * b_value
        cuda.syncthreads()

    # store
    n = n0 + tx
    for w in range(WPT):
        m = m0 + w * THREADS_Y + ty
        if m < M and n < N:
            c[m, n] = acc[w]


@cuda.jit
def transpose(b, b_t):
    """b_t[n, k] = b[k, n], through shared memory, so that both the reads and the writes are coalesced."""
    tile = cuda.shared.array(TRANSPOSE_SHAPE, float32)
    K, N = b.shape
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    tiles_n = (N + TRANSPOSE - 1) // TRANSPOSE
    k0, n0 = cuda.blockIdx.x // tiles_n * TRANSPOSE, cuda.blockIdx.x % tiles_n * TRANSPOSE
    if k0 + ty < K and n0 + tx < N:
        tile[ty, tx] = b[k0 + ty, n0 + tx]
    cuda.syncthreads()
    if k0 + tx < K and n0 + ty < N:
        b_t[n0 + ty, k0 + tx] = tile[tx, ty]


def prepare(b, problem):
    """The transpose of B, once."""
    K, N = b.shape
    b_t = cuda.device_array((N, K), b.dtype)
    transpose[-(-K // TRANSPOSE) * -(-N // TRANSPOSE), (TRANSPOSE, TRANSPOSE)](b, b_t)
    return b_t


def launch(a, b_t, c):
    M, N = c.shape
    wide = aligned(a, b_t)
    for rows, grid in row_slices(M, N, BLOCK_M, BLOCK_N):
        gemm_rectangular_tiles[grid, (THREADS_X, THREADS_Y)](a[rows], b_t, c[rows], wide)
