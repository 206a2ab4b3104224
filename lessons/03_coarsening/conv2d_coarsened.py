"""conv2d_coarsened: each thread computes ROWS pixels of FILTERS maps.

Previous step: conv2d_unroll_gemm
Builds on: conv2d_shared_tile
New idea: back to the staged patch, but a thread owns a column of ROWS pixels in each of FILTERS maps. A pixel, once
    in a register, meets every tap and filter it belongs to; a tap, once read, serves ROWS pixels. The filter is back
    in global memory: its 29 KB on layer 2 fit the L1 cache, but not the constant cache, once all maps are in use.
Loads per FMA: (ROWS + R - 1) / (ROWS * R * FILTERS) = 8 / 80 = 0.1 from shared memory instead of 1, and
    1 / ROWS = 0.25 taps from L1 instead of 1 from the constant cache.
Run: python -m lessons.03_coarsening conv2d_coarsened
"""

import importlib
from functools import lru_cache

from numba import cuda, float32, uint32

from lessons.toolkit.unroll import inlined, unroll, unrolled

channels_staged = importlib.import_module("lessons.02_shared_tiling.conv2d_shared_tile").channels_staged

TILE_H, TILE_W = 16, 16  # a block computes TILE_H x TILE_W pixels of every map
ROWS, FILTERS = 4, 4  # a thread computes ROWS pixels of FILTERS maps at a time
TUNABLES = {"TILE_H": (8, 16, 24, 32), "TILE_W": (16, 32, 33), "ROWS": (1, 2, 4, 8), "FILTERS": (1, 2, 4, 6, 8)}
MAX_GRID_Y = 65535


@lru_cache
def specialise(K, C, R, S, H, W, TILE_H=TILE_H, TILE_W=TILE_W, ROWS=ROWS, FILTERS=FILTERS):
    """The kernel for K filters of C x R x S taps and images of H x W."""
    if TILE_H % ROWS:
        raise ValueError(f"{TILE_H=} must be a multiple of {ROWS=}")
    if TILE_H // ROWS * TILE_W > 1024:
        raise ValueError(f"{TILE_H=} over {ROWS=} times {TILE_W=} must be at most 1024 threads")
    FILTERS = min(FILTERS, K)
    LAST_K = K - FILTERS
    P, Q = H - R + 1, W - S + 1
    TILES_Q = -(-Q // TILE_W)
    THREADS = TILE_H // ROWS * TILE_W
    PATCH_H, PATCH_W = TILE_H + R - 1, TILE_W + S - 1
    AREA = PATCH_H * PATCH_W
    CHANNELS = channels_staged(C, R, S, TILE_H, TILE_W)
    PATCH = CHANNELS * AREA
    TAPS = R * S
    COLUMN, ACC = ROWS + R - 1, ROWS * FILTERS

    @inlined
    @unroll
    def multiply_column(patch, corner, filt, first, column, acc):
        """One column of the patch, at `corner`, with the taps of all filters that it meets, from `first` on."""
        for i in range(COLUMN):
            column[i] = patch[corner + i * PATCH_W]
        for f in unrolled(FILTERS):
            for r in unrolled(R):
                tap = filt[uint32(first + f * C * TAPS + r * S)]
                for i in range(ROWS):
                    acc[f * ROWS + i] += column[i + r] * tap

    @cuda.jit
    @unroll
    def conv2d_coarsened(x, filt, y, N):
        patch = cuda.shared.array(PATCH, float32)
        column = cuda.local.array(COLUMN, float32)
        acc = cuda.local.array(ACC, float32)

        # locate: blockIdx.x counts the tiles of a map row by row, y the images; unsigned indices need no wrap-around
        tile, tx, ty = uint32(cuda.blockIdx.x), uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
        p0, q0 = tile // TILES_Q * TILE_H, tile % TILES_Q * TILE_W
        p, q = p0 + ty * ROWS, q0 + tx
        for n in range(uint32(cuda.blockIdx.y), uint32(N), uint32(cuda.gridDim.y)):
            for group in range(uint32(0), uint32(K), uint32(FILTERS)):
                k = min(uint32(group), uint32(LAST_K))  # the last group moves back over its neighbour
                for i in range(ACC):
                    acc[i] = float32(0.0)
                for c0 in range(0, C, CHANNELS):
                    # stage: once for all filters, if the patch of all channels fits
                    if k == 0 or CHANNELS < C:
                        cuda.syncthreads()
                        i = ty * TILE_W + tx
                        while i < PATCH:
                            line, w = uint32(i) // uint32(PATCH_W), uint32(i) % uint32(PATCH_W)
                            c, h = uint32(line) // uint32(PATCH_H), uint32(line) % uint32(PATCH_H)
                            if p0 + h < H and q0 + w < W:
                                patch[i] = x[((uint32(n) * C + c0 + c) * H + p0 + h) * W + q0 + w]
                            i += THREADS
                        cuda.syncthreads()

                    # multiply: one column of the patch after the other
                    corner = ty * ROWS * PATCH_W + tx
                    first = (uint32(k) * C + c0) * TAPS
                    for _ in range(CHANNELS):
                        for s in unrolled(S):
                            multiply_column(patch, corner + s, filt, first + s, column, acc)
                        corner += AREA
                        first += TAPS

                # store
                pixel = ((uint32(n) * K + uint32(k)) * P + p) * Q + q
                for f in unrolled(FILTERS):
                    for i in range(ROWS):
                        if p + i < P and q < Q:
                            y[pixel + (f * P + i) * Q] = acc[f * ROWS + i]

    return conv2d_coarsened


def prepare(filt, problem, **tile):
    K, C, R, S = filt.shape
    return specialise(K, C, R, S, problem.H, problem.W, **tile), filt.reshape(filt.size)


def launch(x, prepared, y, TILE_H=TILE_H, TILE_W=TILE_W, ROWS=ROWS, FILTERS=FILTERS):
    conv2d_coarsened, filt = prepared
    N, K, P, Q = y.shape
    grid = (-(-P // TILE_H) * -(-Q // TILE_W), min(N, MAX_GRID_Y))
    conv2d_coarsened[grid, (TILE_W, TILE_H // ROWS)](x.reshape(x.size), filt, y.reshape(y.size), N)
