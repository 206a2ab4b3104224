"""conv3d_tf32_space_to_depth: hconv3d_space_to_depth on float32 arrays, rounded to TF32 on their way.

Previous step: conv3d_tf32_im2col
New idea: as in hconv3d_space_to_depth of the ladder beside this one, blocks of pixels become pixels. Blocks of 2 x 2
    pixels of three channels are twelve float32, which are whole 16 bytes already.
Loads per FMA: those of conv3d_tf32_im2col, for 1.3 times as many multiply-adds on the first layer of ResNet-50.
Where x needs no such thing, or y has rows that are no multiple of 16 bytes, conv3d_tf32_im2col computes.
Run: python -m lessons.07_hopper conv3d_tf32_space_to_depth
"""

import importlib

import numpy as np

im2col = importlib.import_module("lessons.07_hopper.conv3d_tf32_im2col")
space = importlib.import_module("lessons.07_hopper.helpers.space_to_depth")

REQUIRES = "9.0a"
PRECISION = "tf32"

prepare, workspace, launch = space.rewriting(im2col, np.float32)
