"""Operands along k, in whole pieces of 16 bytes.

The matrix instructions of 8 bits take both operands K-major, so B is transposed, once. Its rows are padded with zeros
to a multiple of 16 bytes, as copies of 16 bytes and the copy engine ask; rows of A, where a step needs it, too.
"""

import numpy as np
from numba import cuda

from lessons.toolkit.memory import INT8S, byte_array

TILE = 32  # extent of a square tile
STRIDE = (
    TILE + 4
)  # bytes of a row of it: what lanes write along one side, they read along the other without conflicts
SIZE = TILE * STRIDE
MOST = 65535  # blocks of a grid along y
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
        tile[tx * STRIDE + row] = b[k0 + row, n0 + tx] if inside else 0
    cuda.syncthreads()
    for row in range(ty, TILE, ROWS):
        if n0 + row < N and k0 + tx < b_t.shape[1]:
            b_t[n0 + row, k0 + tx] = tile[row * STRIDE + tx]


def transposed(b):
    """B's transpose, of whole pieces of 16 bytes."""
    K, N = b.shape
    b_t = cuda.device_array((N, whole(K)), b.dtype)
    transpose[-(-K // TILE) * -(-N // TILE), (TILE, ROWS)](b.view(np.int8), b_t.view(np.int8))
    return b_t


@cuda.jit
def pad(a, padded):
    """The rows of A, and zeros behind them."""
    k, m = cuda.grid(2)
    M, K = a.shape
    while m < M:
        if k < padded.shape[1]:
            padded[m, k] = a[m, k] if k < K else 0
        m += cuda.gridsize(2)[1]


def padded(a, room):
    """A, or if rows of the workspace `room` are longer, as they are to be of whole pieces, A's copy there."""
    if room is None:
        return a
    M, K = room.shape
    pad[(-(-K // TILE), min(-(-M // ROWS), MOST)), (TILE, ROWS)](a, room)
    return room


def whole(K):
    """The bytes of a row, in whole pieces."""
    return -(-K // INT8S) * INT8S
