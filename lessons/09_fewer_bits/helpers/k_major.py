"""B along k: the matrix instructions of 8 bits take both operands K-major, so B is transposed, once.

Rows of the transpose are padded with zeros to a multiple of 16 bytes, as copies of 16 bytes and the copy engine ask.
"""

from numba import cuda, int8

from lessons.toolkit.memory import INT8S, byte_array

TILE = 32  # extent of a square tile
STRIDE = (
    TILE + 4
)  # bytes of a row of it: what lanes write along one side, they read along the other without conflicts
SIZE = TILE * STRIDE
ROWS = 8  # of a tile that threads read, or write, at a time


@cuda.jit
def transpose(b, b_t):
    """b_t[n, k] = b[k, n], and zeros for further k, through shared memory."""
    tile = byte_array(SIZE)
    K, N = b.shape
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    tiles_n = (N + TILE - 1) // TILE
    k0, n0 = cuda.blockIdx.x // tiles_n * TILE, cuda.blockIdx.x % tiles_n * TILE
    for row in range(ty, TILE, ROWS):
        inside = k0 + row < K and n0 + tx < N
        tile[tx * STRIDE + row] = b[k0 + row, n0 + tx] if inside else int8(0)
    cuda.syncthreads()
    for row in range(ty, TILE, ROWS):
        if n0 + row < N and k0 + tx < b_t.shape[1]:
            b_t[n0 + row, k0 + tx] = tile[row * STRIDE + tx]


def transposed(b):
    """B's transpose, of whole pieces of 16 bytes."""
    K, N = b.shape
    b_t = cuda.device_array((N, -(-K // INT8S) * INT8S), b.dtype)
    transpose[-(-K // TILE) * -(-N // TILE), (TILE, ROWS)](b, b_t)
    return b_t
