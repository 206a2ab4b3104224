"""`prepare` for steps that read B along k: it transposes B, once."""

from numba import cuda, float32

TILE = 32  # extent of a square tile
SHAPE = (TILE, TILE + 1)  # rows are padded by a value: a warp reads a column, each value from another bank


@cuda.jit
def transpose(b, b_t):
    """b_t[n, k] = b[k, n], through shared memory, so that both the reads and the writes are coalesced."""
    tile = cuda.shared.array(SHAPE, float32)
    K, N = b.shape
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    tiles_n = (N + TILE - 1) // TILE
    k0, n0 = cuda.blockIdx.x // tiles_n * TILE, cuda.blockIdx.x % tiles_n * TILE
    if k0 + ty < K and n0 + tx < N:
        tile[ty, tx] = b[k0 + ty, n0 + tx]
    cuda.syncthreads()
    if k0 + tx < K and n0 + ty < N:
        b_t[n0 + ty, k0 + tx] = tile[tx, ty]


def prepare(b, problem):
    """A new device array [N, K] with the values of B, float32 [K, N]."""
    K, N = b.shape
    b_t = cuda.device_array((N, K), b.dtype)
    transpose[-(-K // TILE) * -(-N // TILE), (TILE, TILE)](b, b_t)
    return b_t
