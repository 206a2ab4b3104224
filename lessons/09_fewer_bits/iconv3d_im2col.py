"""iconv3d_im2col: lesson 07's convolution on int8: four channels are a word.

Previous step: iconv3d_direct
New idea: hconv3d_im2col's kernels as they are, with values of another kind. What they copy are words of four
    channels; what they multiply are the bytes in them; what leaves are words again, one for each int32 sum.
Loads per FMA: (BLOCK_M + BLOCK_N) / (BLOCK_M * BLOCK_N) values from L2, none by threads; a value is one byte.
Where the copy engine cannot walk along the windows (im2col_plan.describable), iconv3d_direct computes.
Run: python -m lessons.09_fewer_bits iconv3d_im2col
"""

import importlib
from functools import partial

import numpy as np

direct = importlib.import_module("lessons.09_fewer_bits.iconv3d_direct")
im2col = importlib.import_module("lessons.07_hopper.hconv3d_im2col")
INT8 = importlib.import_module("lessons.09_fewer_bits.igemm_wgmma").INT8

REQUIRES = "9.0a"
TUNABLES = im2col.TUNABLES
shipped = partial(im2col.shipped, kind=INT8)


def launch(x, filt, y, geometry, **tile):
    if not im2col.planning.describable(x, filt, y, geometry):
        return direct.launch(x, filt, y, geometry)
    x, filt = x.view(np.int32), filt.view(np.int32)
    if not tile and (few := im2col.few_filters.plan(INT8, y.shape, filt.shape, geometry)):
        return im2col.few_filters.launch(x, filt, y, geometry, few, INT8)
    im2col.convolve(x, filt, y, geometry, INT8, **tile)
