"""conv2d_unroll_gemm: write every window out as a column of a matrix, then multiply matrices.

Previous step: conv2d_shared_tile
Builds on: gemm_shared_tile
New idea: y = F @ U, where column (n, p, q) of U holds the C * R * S inputs of that output. One kernel writes U to a
    workspace, another multiplies as gemm_shared_tile. The batch goes in chunks: U stays within WORKSPACE_BYTES.
Loads per FMA: 2 from shared memory; from global memory 2 / TILE = 0.13, but U, R * S times the image, is written
    once and read back once for every TILE filters.
Run: python -m lessons.02_shared_tiling conv2d_unroll_gemm
"""

from functools import lru_cache

import numpy as np
from numba import cuda, float32, uint32

WORKSPACE_BYTES = 256 * 1024 * 1024
TILE = 16  # a block computes TILE filters x TILE pixels, one output per thread
UNROLL_THREADS = 256
TUNABLES = {"TILE": (8, 16, 32), "UNROLL_THREADS": (128, 256, 512)}
MAX_GRID_Y = 65535


@lru_cache
def specialise(C, H, W, K, R, S, TILE=TILE, UNROLL_THREADS=UNROLL_THREADS):
    """The kernel that unrolls and the one that multiplies, for filters of K x C x R x S and images of H x W."""
    if TILE * TILE > 1024:
        raise ValueError(f"{TILE=} squared must be at most 1024 threads")
    P, Q = H - R + 1, W - S + 1
    PIXELS, TAPS = P * Q, C * R * S
    TILE_SHAPE = (TILE, TILE)

    @cuda.jit
    def unroll_windows(x, columns, width):
        """columns[(c, r, s), (n, p, q)] = x[n, c, p + r, q + s]"""
        width = uint32(width)  # unsigned: an index that cannot be negative needs no wrap-around
        gemm_n = uint32(cuda.blockIdx.x) * UNROLL_THREADS + uint32(cuda.threadIdx.x)
        if gemm_n < width:
            n, pixel = gemm_n // PIXELS, gemm_n % PIXELS
            corner = n * C * H * W + pixel // Q * W + pixel % Q
            at = gemm_n
            for _ in range(C):
                for r in range(R):
                    for s in range(S):
                        columns[at] = x[corner + r * W + s]
                        at += width
                corner += H * W

    @cuda.jit
    def multiply_columns(filt, columns, y, width):
        """y[n, k, (p, q)] = sum over gemm_k of filt[k, gemm_k] * columns[gemm_k, (n, p, q)]"""
        a_tile = cuda.shared.array(TILE_SHAPE, float32)
        b_tile = cuda.shared.array(TILE_SHAPE, float32)

        # locate: blockIdx.x counts the tiles of pixels, y those of filters
        tx, ty = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
        width = uint32(width)
        gemm_n = uint32(cuda.blockIdx.x) * TILE + tx
        for block_m in range(cuda.blockIdx.y * TILE, K, cuda.gridDim.y * TILE):
            gemm_m = uint32(block_m) + ty  # the filter
            acc = float32(0.0)
            for gemm_k in range(0, TAPS, TILE):
                # stage: what lies outside F or U counts as zero
                tap, row = uint32(gemm_k) + tx, uint32(gemm_k) + ty
                a_tile[ty, tx] = filt[gemm_m * TAPS + tap] if gemm_m < K and tap < TAPS else float32(0.0)
                b_tile[ty, tx] = columns[row * width + gemm_n] if row < TAPS and gemm_n < width else float32(0.0)
                cuda.syncthreads()  # nobody reads before all have written

                # multiply
                for k in range(TILE):
                    acc += a_tile[ty, k] * b_tile[k, tx]
                cuda.syncthreads()  # nobody writes the next tiles before all have read these

            # store
            if gemm_m < K and gemm_n < width:
                n, pixel = gemm_n // PIXELS, gemm_n % PIXELS
                y[(n * K + gemm_m) * PIXELS + pixel] = acc

    return unroll_windows, multiply_columns


def workspace(problem):
    """U for as many images as fit WORKSPACE_BYTES, and for at least one."""
    per_image = problem.C * problem.R * problem.S * problem.P * problem.Q
    images = min(problem.N, max(1, WORKSPACE_BYTES // (4 * per_image)))
    return cuda.device_array(images * per_image, np.float32)


def launch(x, filt, y, columns, TILE=TILE, UNROLL_THREADS=UNROLL_THREADS):
    N, C, H, W = x.shape
    K, _, R, S = filt.shape
    P, Q = y.shape[2:]
    unroll_windows, multiply_columns = specialise(C, H, W, K, R, S, TILE, UNROLL_THREADS)
    chunk = columns.size // (C * R * S * P * Q)
    filt = filt.reshape(filt.size)
    for first in range(0, N, chunk):
        images, maps = x[first : first + chunk], y[first : first + chunk]
        width = images.shape[0] * P * Q
        unroll_windows[-(-width // UNROLL_THREADS), UNROLL_THREADS](images.reshape(images.size), columns, width)
        grid = (-(-width // TILE), min(-(-K // TILE), MAX_GRID_Y))
        multiply_columns[grid, (TILE, TILE)](filt, columns, maps.reshape(maps.size), width)
