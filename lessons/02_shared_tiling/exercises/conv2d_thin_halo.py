"""Exercise 02.6, find the bug: wrong in one corner of each tile.

Here every thread stages its own pixel, and some threads a second and a third: the halo to the right of the tile, and
the halo below it. There are two mistakes in that, of which a square filter shows but one. The grader names what goes
wrong first; work out which pixels of the patch are meant, and who was to stage them. Change at most 3 lines.
Grade: python -m common grade 02.6
"""

from functools import lru_cache

from numba import cuda, float32

TILE_H, TILE_W = 8, 16  # a block computes TILE_H x TILE_W pixels of one map; filters are no larger


@cuda.jit(device=True)
def pixel(x, n, c, h, w):
    """x[n, c, h, w], or zero outside."""
    return x[n, c, h, w] if h < x.shape[2] and w < x.shape[3] else float32(0.0)


@lru_cache
def specialise(R, S):
    """The kernel for filters of R x S taps."""
    PATCH_SHAPE = (TILE_H + R - 1, TILE_W + S - 1)

    @cuda.jit
    def conv2d_thin_halo(x, filt, y):
        patch = cuda.shared.array(PATCH_SHAPE, float32)
        P, Q = y.shape[2:]

        # locate
        tiles_q = (Q + TILE_W - 1) // TILE_W
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        p = cuda.blockIdx.x // tiles_q * TILE_H + ty
        q = cuda.blockIdx.x % tiles_q * TILE_W + tx
        k, n = cuda.blockIdx.y, cuda.blockIdx.z
        right, below = tx < R - 1, ty < S - 1

        acc = float32(0.0)
        for c in range(x.shape[1]):
            # stage
            patch[ty, tx] = pixel(x, n, c, p, q)
            if right:
                patch[ty, tx + TILE_W] = pixel(x, n, c, p, q + TILE_W)
            if below:
                patch[ty + TILE_H, tx] = pixel(x, n, c, p + TILE_H, q)
            cuda.syncthreads()

            # multiply
            for r in range(R):
                for s in range(S):
                    acc += patch[ty + r, tx + s] * filt[k, c, r, s]
            cuda.syncthreads()

        # store
        if p < P and q < Q:
            y[n, k, p, q] = acc

    return conv2d_thin_halo


def launch(x, filt, y):
    N, K, P, Q = y.shape
    grid = (-(-P // TILE_H) * -(-Q // TILE_W), K, N)
    specialise(*filt.shape[2:])[grid, (TILE_W, TILE_H)](x, filt, y)
