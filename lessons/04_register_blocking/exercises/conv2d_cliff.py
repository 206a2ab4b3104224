"""Exercise 04.6, tune: as many sums as stay registers.

A thread computes ROWS pixels below each other in FILTERS maps, with a column of pixels and all sums in registers.
More of either means fewer reads, and longer loops. Where the compiler does not write these out, the arrays go to
memory: @unroll of lessons/toolkit/unroll.py, under @cuda.jit, writes out loops over unrolled(...). At most 0.17 reads
of global memory for each multiply-add of 5 x 5 taps, counted in your source, 168 registers, and no stack.
With a GPU: at least 5 percent of the floor's rate on ece408-layer2.
Grade: python -m common grade 04.6
"""

from functools import lru_cache

from numba import cuda, float32

THREADS_X, THREADS_Y = 16, 4
ROWS, FILTERS = 4, 4  # pixels below each other, in so many maps, that a thread computes


@lru_cache
def specialise(R, S):
    """The kernel for filters of R x S taps."""
    COLUMN = ROWS + R - 1
    ACC = FILTERS * ROWS

    @cuda.jit
    def conv2d_cliff(x, filt, y):
        column = cuda.local.array(COLUMN, float32)
        acc = cuda.local.array(ACC, float32)
        N, C, H, _ = x.shape
        K, P, Q = y.shape[1:]

        # locate
        tiles_q = (Q + THREADS_X - 1) // THREADS_X
        p = (cuda.blockIdx.x // tiles_q * THREADS_Y + cuda.threadIdx.y) * ROWS
        q = cuda.blockIdx.x % tiles_q * THREADS_X + cuda.threadIdx.x
        k, n = cuda.blockIdx.y * FILTERS, cuda.blockIdx.z
        if p < P and q < Q:
            # multiply
            for i in range(ACC):
                acc[i] = float32(0.0)
            for c in range(C):
                for s in range(S):
                    for i in range(COLUMN):
                        column[i] = x[n, c, p + i, q + s] if p + i < H else float32(0.0)
                    for f in range(FILTERS):
                        for r in range(R):
                            tap = filt[k + f, c, r, s] if k + f < K else float32(0.0)
                            for i in range(ROWS):
                                acc[f * ROWS + i] += column[i + r] * tap

            # store
            for f in range(FILTERS):
                for i in range(ROWS):
                    if k + f < K and p + i < P:
                        y[n, k + f, p + i, q] = acc[f * ROWS + i]

    return conv2d_cliff


def launch(x, filt, y):
    N, K, P, Q = y.shape
    tiles = -(-P // (THREADS_Y * ROWS)) * -(-Q // THREADS_X)
    specialise(*filt.shape[2:])[(tiles, -(-K // FILTERS), N), (THREADS_X, THREADS_Y)](x, filt, y)
