"""conv2d_unrolled: the filter's extents are compile-time constants, so its loops unroll.

Previous step: conv2d_naive
New idea: C, R and S come from the enclosing function, and Numba compiles such names in as constants; the
    compiler then writes the R x S multiply-adds out one after another, without loop counters.
Loads per FMA: 2, both from global memory, as before; what shrinks is the index arithmetic around them.
Run: python -m lessons.01_naive conv2d_unrolled
"""

from functools import lru_cache

from numba import cuda, float32

THREADS_X = 16
THREADS_Y = 16
MAX_GRID_YZ = 65535  # blocks that a grid holds at most along y, and along z


@lru_cache
def specialise(C, R, S):
    """The kernel for filters of C x R x S taps."""

    @cuda.jit
    def conv2d_unrolled(x, filt, y):
        N, K, P, Q = y.shape

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

    return conv2d_unrolled


def prepare(filt, problem):
    return specialise(problem.C, problem.R, problem.S), filt


def launch(x, prepared, y):
    conv2d_unrolled, filt = prepared
    N, K, P, Q = y.shape
    tiles = -(-P // THREADS_Y) * -(-Q // THREADS_X)
    for k0 in range(0, K, MAX_GRID_YZ):
        filters = slice(k0, min(k0 + MAX_GRID_YZ, K))
        grid = (tiles, filters.stop - k0, min(N, MAX_GRID_YZ))
        conv2d_unrolled[grid, (THREADS_X, THREADS_Y)](x, filt[filters], y[:, filters])
