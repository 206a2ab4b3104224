"""240,000 bytes of dynamic shared memory, where no GPU has more than 227 KiB for a block.

Class: gpu
Refute: {"shape": "M=4 N=5 K=6"}
"""

from numba import cuda, float32

TILE = 16
STAGES_BYTES = 240_000


@cuda.jit
def product(a, b, c):
    tiles = cuda.shared.array(0, float32)
    b_base = TILE * TILE
    M, N = c.shape
    K = a.shape[1]
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    n, m = cuda.grid(2)
    acc = float32(0.0)
    for k0 in range(0, K, TILE):
        tiles[ty * TILE + tx] = a[m, k0 + tx] if m < M and k0 + tx < K else float32(0.0)
        tiles[b_base + ty * TILE + tx] = b[k0 + ty, n] if k0 + ty < K and n < N else float32(0.0)
        cuda.syncthreads()
        for k in range(TILE):
            acc += tiles[ty * TILE + k] * tiles[b_base + k * TILE + tx]
        cuda.syncthreads()
    if m < M and n < N:
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // TILE), -(-M // TILE)), (TILE, TILE), 0, STAGES_BYTES](a, b, c)
