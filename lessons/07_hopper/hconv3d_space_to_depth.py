"""hconv3d_space_to_depth: three channels and a stride of two become sixteen channels and no stride.

Previous step: hconv3d_im2col
New idea: the copy engine wants pixels of whole 16 bytes, and an image has three channels: 6 bytes. A small kernel
    makes a block of stride_h x stride_w pixels one pixel, with the channels of all and zeros up to 16 bytes (space to
    depth). The first layer of ResNet-50, 7 x 7 taps of 3 channels with a stride of 2, turns into one of 4 x 4 taps of
    16 channels without. The filter is rewritten once, beforehand.
Loads per FMA: those of hconv3d_im2col, for 1.7 times as many multiply-adds here; x is read once more and written.
Where x needs no such thing, or y has rows that are no multiple of 16 bytes, hconv3d_im2col computes.
Run: python -m lessons.07_hopper hconv3d_space_to_depth
"""

import importlib

import numpy as np

im2col = importlib.import_module("lessons.07_hopper.hconv3d_im2col")
space = importlib.import_module("lessons.07_hopper.helpers.space_to_depth")

REQUIRES = "9.0a"

prepare, workspace, launch = space.rewriting(im2col, np.float16)
