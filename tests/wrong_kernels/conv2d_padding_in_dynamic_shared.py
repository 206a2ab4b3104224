"""A patch in dynamic shared memory has a border that nobody writes and that is taken to be zero.

Class: zero
Refute: {"shape": "N=1 C=1 H=40 W=40 K=1 R=3 S=3"}
"""

from numba import cuda, float32

TILE = 20


@cuda.jit
def convolve(x, filt, y):
    patch = cuda.shared.array(0, float32)
    N, K, P, Q = y.shape
    _, C, R, S = filt.shape
    H, W = x.shape[2], x.shape[3]
    tiles = (Q + TILE - 1) // TILE
    p0, q0 = cuda.blockIdx.x // tiles * TILE, cuda.blockIdx.x % tiles * TILE
    k, n = cuda.blockIdx.y, cuda.blockIdx.z
    width = TILE + S - 1
    last_h = min(TILE + R - 1, 20)  # two rows of the halo are forgotten where a tile is full
    acc = float32(0.0)
    for c in range(C):
        for h in range(cuda.threadIdx.y, last_h, TILE):
            for w in range(cuda.threadIdx.x, width, TILE):
                if p0 + h < H and q0 + w < W:
                    patch[h * width + w] = x[n, c, p0 + h, q0 + w]
        cuda.syncthreads()
        for r in range(R):
            for s in range(S):
                acc += patch[(cuda.threadIdx.y + r) * width + cuda.threadIdx.x + s] * filt[k, c, r, s]
        cuda.syncthreads()
    if p0 + cuda.threadIdx.y < P and q0 + cuda.threadIdx.x < Q:
        y[n, k, p0 + cuda.threadIdx.y, q0 + cuda.threadIdx.x] = acc


def launch(x, filt, y):
    N, K, P, Q = y.shape
    _, C, R, S = filt.shape
    size = 4 * (TILE + R - 1) * (TILE + S - 1)
    convolve[(-(-P // TILE) * -(-Q // TILE), K, N), (TILE, TILE), 0, size](x, filt, y)
