"""Exercise 07.10, find the bug: a corner that is off by one.

The copy engine walks along the windows of x, as in hconv3d_im2col, whose kernel this is. Without a dilation it is
right. C and K must be multiples of 8, so that rows are whole pieces. Change one line.
Grade: python -m common grade 07.10
"""

import importlib

from lessons.toolkit.maps import Maps

im2col = importlib.import_module("lessons.07_hopper.hconv3d_im2col")

REQUIRES = "9.0a"
PIXELS, FILTERS, CHANNELS = 128, 64, 64  # of a tile
MAPS = Maps()


def launch(x, filt, y, geometry):
    N, O, P, Q, K = y.shape
    T, R, S, C = filt.shape[1:]
    pads = geometry.pad_d, geometry.pad_h, geometry.pad_w
    strides = geometry.stride_d, geometry.stride_h, geometry.stride_w
    dilations = geometry.dilation_d, geometry.dilation_h, geometry.dilation_w
    lower = [-pad for pad in pads]
    upper = [pads[i] - (T, R, S)[i] * dilations[i] + 1 for i in range(3)]
    x_map = MAPS.im2col(x, lower, upper, CHANNELS, PIXELS, strides)
    filt_map = MAPS.tiled(filt.reshape(K, T * R * S * C), (FILTERS, CHANNELS))
    y_map = MAPS.tiled(y.reshape(N * O * P * Q, K), (16, 64))
    kernel, threads, shared_bytes = im2col.specialise(PIXELS, FILTERS, CHANNELS, CONSUMERS=2, RESIDENT=0)
    blocks = -(-N * O * P * Q // PIXELS) * -(-K // FILTERS)
    extents = N * O * P * Q, K, C
    kernel[blocks, threads, 0, shared_bytes](x_map, filt_map, y_map, extents, (T, R, S), (O, P, Q), geometry)
