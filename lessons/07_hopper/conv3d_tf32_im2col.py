"""conv3d_tf32_im2col: hconv3d_im2col on float32 arrays, rounded to TF32 by the engine that copies them.

Previous step: conv3d_implicit_gemm_precomputed
Builds on: hconv3d_im2col
New idea: hconv3d_im2col's kernel, with values of another kind. Of float32 the matrix unit reads 19 bits and cuts off
    the others, which doubles the error of rounding them. So the copy engine rounds: a tensor map may say that its
    values become TF32 on their way to shared memory. Neither x nor filt is rewritten.
Loads per FMA: (BLOCK_M + BLOCK_N) / (BLOCK_M * BLOCK_N) values from L2, none by threads.
Where the engine cannot describe the arrays (rows that are no multiple of 16 bytes, corners outside -16 to 15,
    taps that reach more than 31 pixels, strides above 8), conv3d_implicit_gemm_precomputed computes, in FP32.
Run: python -m lessons.07_hopper conv3d_tf32_im2col
"""

import importlib
from functools import partial

from numba import cuda, float32

from lessons.toolkit import hopper
from lessons.toolkit.memory import store2
from lessons.toolkit.narrow import narrow
from lessons.toolkit.unroll import inlined

unaligned = importlib.import_module("lessons.05_implicit_gemm.conv3d_implicit_gemm_precomputed")
im2col = importlib.import_module("lessons.07_hopper.hconv3d_im2col")

REQUIRES = "9.0a"
PRECISION = "tf32"
TUNABLES = im2col.TUNABLES


@inlined
@narrow
def leave_part(tiles, at, acc, first):
    """The warp's part of 32 columns of y, 16 rows, from acc[first] on to tiles[at], swizzled."""
    row, pair = cuda.threadIdx.x % 32 // 4, cuda.threadIdx.x % 4 * 2
    for j in range(4):
        place = at + row * 32 + (8 * j + pair ^ row * 4)
        store2(tiles, place, acc, first + 4 * j)
        store2(tiles, place + 8 * 32, acc, first + 4 * j + 2)


TF32 = im2col.planning.Kind(
    4, 8, float32, hopper.float_tiles, hopper.wgmma_tf32, hopper.wgmma_tf32_registers, leave_part, tf32=True
)
shipped = partial(im2col.shipped, kind=TF32)
prepare = unaligned.prepare  # the filter, and the table that the other step needs


def launch(x, prepared, y, geometry, **tile):
    filt, _ = prepared
    if not im2col.planning.describable(x, filt, y, geometry):
        return unaligned.launch(x, prepared, y, geometry, SPLIT_K=1)
    im2col.convolve(x, filt, y, geometry, TF32, **tile)
