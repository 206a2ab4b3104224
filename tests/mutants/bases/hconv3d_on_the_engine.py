"""The lesson's kernel, given tensor maps of corners and strides that the engine knows."""

import importlib

from lessons.toolkit.memory import aligned

step = importlib.import_module("lessons.07_hopper.hconv3d_im2col")

REQUIRES = "9.0a"
prepare = step.prepare
TILE = {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 64, "CONSUMERS": 2, "RESIDENT": 0}


def launch(x, prepared, y, geometry):
    filt, _ = prepared
    lower, upper, strides, reach = step.planning.corners(geometry, x.shape, y.shape, filt.shape[1:4])
    within = min(lower + upper) >= -16 and max(upper) <= 15 and max(reach) < 32
    if not (within and max(strides) <= 8 and aligned(x, filt, y)):
        return step.unaligned.launch(x, prepared, y, geometry)
    step.convolve(x, filt, y, geometry, **TILE)
