"""Values of gemm_tf32x3 split in two TF32 values: A by those who multiply it, B beforehand, by a kernel of its own.

B is turned as well, as wgmma takes TF32 only with k along rows.
"""

from numba import cuda, float32, uint32

from lessons.toolkit.grid import jit
from lessons.toolkit.memory import VECTOR, load4, shared_array, store4
from lessons.toolkit.mma import to_tf32
from lessons.toolkit.tiles import ceil_div
from lessons.toolkit.unroll import inlined

ROW, K_STEPS = 32, 4  # values of k in a row of a tile of A, and instructions for them
SPLIT, SPLIT_THREADS = 64, 256  # rows and columns of B that a block splits
QUADS = SPLIT // VECTOR
STRIDE = SPLIT + 1  # padded against bank conflicts
TURNED = SPLIT * STRIDE


@inlined
def split_a(tiles, at, swizzle, high, low):
    """The lane's part of 16 rows of A, from tiles[at] on, in two; the matrix unit cuts what low has too much."""
    for k in range(K_STEPS):
        for right in range(2):
            place = at + (uint32(8 * k + 4 * right) ^ swizzle)
            for below in range(2):
                value = tiles[place + uint32(8 * ROW * below)]
                high[4 * k + 2 * right + below] = to_tf32(value)
                low[4 * k + 2 * right + below] = value - high[4 * k + 2 * right + below]


@jit(SPLIT_THREADS, 6)
def split_b(b, parts):
    """parts[n] = b[:, n] rounded to TF32, parts[N + n] = what is left of it: rows run along k."""
    turned = shared_array(TURNED)
    quad, rest = cuda.local.array(VECTOR, float32), cuda.local.array(VECTOR, float32)
    K, N = b.shape
    blocks_n = (N + SPLIT - 1) // SPLIT
    k0, n0 = cuda.blockIdx.x // blocks_n * SPLIT, cuda.blockIdx.x % blocks_n * SPLIT
    row, column = cuda.threadIdx.x // QUADS, cuda.threadIdx.x % QUADS * VECTOR
    for i in range(0, SPLIT, SPLIT_THREADS // QUADS):
        if k0 + row + i < K and n0 + column < N:
            load4(quad, 0, b, (k0 + row + i) * N + n0 + column)
            for v in range(VECTOR):
                turned[(column + v) * STRIDE + row + i] = quad[v]
    cuda.syncthreads()
    for i in range(0, SPLIT, SPLIT_THREADS // QUADS):
        if n0 + row + i < N and k0 + column < K:
            for v in range(VECTOR):
                value = turned[(row + i) * STRIDE + column + v]
                quad[v] = to_tf32(value)
                rest[v] = value - quad[v]
            at = (n0 + row + i) * K + k0 + column
            store4(parts, at, quad, 0)
            store4(parts, at + N * K, rest, 0)


def launch(b, parts):
    """Fill `parts`, 2N x K, from `b`, K x N; rows of both are multiples of 16 bytes."""
    K, N = b.shape
    split_b[ceil_div(K, SPLIT) * ceil_div(N, SPLIT), SPLIT_THREADS](b, parts)
