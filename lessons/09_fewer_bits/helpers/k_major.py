"""Operands along k, in whole pieces of 16 bytes: B transposed, once; rows of A, where a step needs it, padded."""

from functools import lru_cache

import numpy as np
from numba import cuda, int8, int16

from lessons.toolkit.memory import INT8S

TILE = 32  # extent of a square tile
MOST = 65535  # blocks of a grid along y
ROWS = 8  # of a tile that threads read, or write, at a time


@lru_cache
def transposing(value):
    """Build the kernel for values of this type."""
    # a word more than a row has: what lanes write along one side, they read along the other without conflicts
    STRIDE = TILE + 32 // value.bitwidth
    SIZE = TILE * STRIDE

    @cuda.jit
    def transpose(b, b_t):
        """b_t[n, k] = b[k, n], and zeros for further k, through shared memory."""
        tile = cuda.shared.array(SIZE, value, alignment=16)
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

    return transpose


def transposed(b):
    """B's transpose, of whole pieces of 16 bytes; values of one byte or two."""
    K, N = b.shape
    size = b.dtype.itemsize
    b_t = cuda.device_array((N, whole(K * size) // size), b.dtype)
    value = {1: int8, 2: int16}[size]
    bits = np.dtype(str(value))
    transposing(value)[-(-K // TILE) * -(-N // TILE), (TILE, ROWS)](b.view(bits), b_t.view(bits))
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
