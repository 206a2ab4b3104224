"""conv2d_naive: one thread computes one output pixel; input and filter come from global memory.

Previous step: none
New idea: a block is a tile of THREADS_Y x THREADS_X pixels of one feature map y[n, k]; the grid covers all
    tiles, filters and images.
Loads per FMA: 2, both from global memory (one pixel of x, one tap of filt).
Run: python -m lessons.01_naive conv2d_naive
"""

from numba import cuda, float32

THREADS_X = 16
THREADS_Y = 16
MAX_GRID_YZ = 65535  # blocks that a grid holds at most along y, and along z


@cuda.jit
def conv2d_naive(x, filt, y):
    N, K, P, Q = y.shape
    _, C, R, S = filt.shape

    # locate: blockIdx.x counts the tiles of a map row by row, y the filters, z the images
    tiles_q = (Q + THREADS_X - 1) // THREADS_X
    p = cuda.blockIdx.x // tiles_q * THREADS_Y + cuda.threadIdx.y
    q = cuda.blockIdx.x % tiles_q * THREADS_X + cuda.threadIdx.x
    k = cuda.blockIdx.y
    # a grid holds at most 65535 blocks in z, so a block may serve several images
    for n in range(cuda.blockIdx.z, N, cuda.gridDim.z):
        if p < P and q < Q:
            # stage: nothing, every operand comes straight from global memory

            # multiply
            acc = float32(0.0)
            for c in range(C):
                for r in range(R):
                    for s in range(S):
                        acc += x[n, c, p + r, q + s] * filt[k, c, r, s]

            # store
            y[n, k, p, q] = acc


def launch(x, filt, y):
    N, K, P, Q = y.shape
    tiles = -(-P // THREADS_Y) * -(-Q // THREADS_X)
    for k0 in range(0, K, MAX_GRID_YZ):
        filters = slice(k0, min(k0 + MAX_GRID_YZ, K))
        grid = (tiles, filters.stop - k0, min(N, MAX_GRID_YZ))
        conv2d_naive[grid, (THREADS_X, THREADS_Y)](x, filt[filters], y[:, filters])
