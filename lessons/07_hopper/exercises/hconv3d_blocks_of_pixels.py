"""Exercise 07.15, write: blocks of pixels become pixels.

x has few channels, and the strides are along h and w. Each thread writes channels of one pixel of `target`, whose
pixels are blocks of ROWS x COLUMNS pixels of x: first all channels of a block's first pixel, then of the pixel to its
right, and so on, row by row; zeros follow, up to CHANNELS. What lies outside x counts as zero, too: blocks at the
right and lower edge, and, of a filter, the taps above and to the left of the first one (`up`, `left`).
Grade: python -m common grade 07.15
"""

import importlib

import numpy as np
from numba import cuda

im2col = importlib.import_module("lessons.07_hopper.hconv3d_im2col")
space = importlib.import_module("lessons.07_hopper.helpers.space_to_depth")

REQUIRES = "9.0a"
THREADS = 64


@cuda.jit
def hconv3d_blocks_of_pixels(source, target, C, ROWS, COLUMNS, up, left):
    _, D, H, W, _ = source.shape
    _, _, lines, columns, CHANNELS = target.shape
    plane, line = cuda.blockIdx.x // lines, cuda.blockIdx.x % lines
    n, d = plane // D, plane % D
    for at in range(cuda.threadIdx.x, columns * CHANNELS, THREADS):
        column, channel = at // CHANNELS, at % CHANNELS
        target[n, d, line, column, channel] = 0
        # >>> your code: 5 lines
        # <<<


def rewrite(source, target, folded, up=0, left=0):
    blocks = target.shape[0] * target.shape[1] * target.shape[2]
    hconv3d_blocks_of_pixels[blocks, THREADS](source, target, folded.C, folded.ROWS, folded.COLUMNS, up, left)


prepare, workspace, launch = space.rewriting(im2col, np.float16, rewrite)
